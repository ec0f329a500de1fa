/**
 * SPF vectors: the modifiers and the macros (RFC 7208 sections 6 and 7). A macro is right if the name that it should expand to is
 * the only name that exists.
 */
import type { Section, Vector } from './vector.ts';

const v6 = '2001:db8:1:2::cb01';
const v6Nibbles = '2.0.0.1.0.d.b.8.0.0.0.1.0.0.0.2.0.0.0.0.0.0.0.0.0.0.0.0.c.b.0.1';
const v6Arpa = `${v6Nibbles.split('.').reverse().join('.')}.ip6.arpa`;
const exists = { A: ['127.0.0.2'] };
const long = 'x'.repeat(60);

/** `spec` expands to `name`: the record passes with the name, and fails without it. */
function expands(spec: string, name: string, given: Vector[2] = {}): readonly Vector[] {
  const record = `v=spf1 exists:${spec} -all`;
  return [
    [record, 'pass', { ...given, zone: { ...given.zone, [name]: exists } }],
    [record, 'fail', given],
  ];
}

export const modifierSections: readonly Section[] = [
  {
    title: '6.1: redirect',
    zone: {
      'pass.example': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
      'soft.example': { TXT: ['v=spf1 ~all'] },
      'silent.example': { TXT: ['v=spf1 ip4:198.51.100.1'] },
      'none.example': { TXT: ['no policy'] },
      'wrong.example': { TXT: ['v=spf1 nonsense'] },
      'down.example': 'SERVFAIL',
      'here.example': { TXT: ['v=spf1 a exists:%{d}.seen.example -all'], A: ['192.0.2.7'] },
      'here.example.seen.example': exists,
      'chain.example': { TXT: ['v=spf1 redirect=pass.example'] },
      '_spf.example.com': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
    },
    vectors: [
      ['v=spf1 redirect=pass.example', 'pass'],
      ['v=spf1 redirect=pass.example', 'fail', { ip: '192.0.2.8' }],
      ['v=spf1 redirect=soft.example', 'softfail'],
      ['v=spf1 redirect=silent.example', 'neutral'],
      ['v=spf1 redirect=chain.example', 'pass'],
      ['v=spf1 redirect=here.example', 'pass', { shows: 'the domain is that of the redirect' }],
      ['v=spf1 redirect=here.example', 'pass', { ip: '192.0.2.8', shows: 'and %{d} too' }],
      ['v=spf1 redirect=_spf.%{d}', 'pass'],
      ['v=spf1 redirect=soft.example ip4:192.0.2.7', 'pass', { shows: 'mechanisms come first' }],
      ['v=spf1 ?all redirect=pass.example', 'neutral', { shows: 'all makes redirect useless' }],
      ['v=spf1 redirect=pass.example ?all', 'neutral'],
      ['v=spf1 REDIRECT=Pass.Example', 'pass'],
      ['v=spf1 redirect=none.example', 'permerror', { shows: 'none is permerror' }],
      ['v=spf1 redirect=absent.example', 'permerror'],
      ['v=spf1 redirect=wrong.example', 'permerror'],
      ['v=spf1 redirect=down.example', 'temperror'],
      ['v=spf1 redirect=pass.example redirect=pass.example', 'permerror', { shows: 'twice' }],
      ['v=spf1 redirect=', 'permerror'],
      ['v=spf1 redirect=pass', 'permerror'],
      ['v=spf1 redirect=pass.example/24', 'permerror'],
      ['v=spf1 redirect:pass.example', 'permerror', { shows: 'a modifier, not a mechanism' }],
    ],
  },
  {
    title: '6.2: exp never changes the result',
    zone: {
      'why.example': { TXT: ['%{i} does not send for %{d}'] },
      'two.example': { TXT: ['one', 'two'] },
      'bad.example': { TXT: ['%{nonsense} 100%'] },
      'down.example': 'SERVFAIL',
      'silent.example': { A: ['192.0.2.1'] },
      'inner.example': { TXT: ['v=spf1 exp=down.example -all'] },
    },
    vectors: [
      ['v=spf1 exp=why.example -all', 'fail'],
      ['v=spf1 -all exp=why.example', 'fail'],
      ['v=spf1 exp=why.example +all', 'pass'],
      ['v=spf1 exp=why.example ~all', 'softfail'],
      ['v=spf1 exp=two.example -all', 'fail', { shows: 'several texts' }],
      ['v=spf1 exp=bad.example -all', 'fail', { shows: 'a text with a mistake' }],
      ['v=spf1 exp=silent.example -all', 'fail', { shows: 'no text' }],
      ['v=spf1 exp=absent.example -all', 'fail'],
      ['v=spf1 exp=down.example -all', 'fail', { shows: 'DNS fails' }],
      ['v=spf1 exp=%{l}.%{d} -all', 'fail'],
      ['v=spf1 include:inner.example ~all exp=why.example', 'softfail'],
      ['v=spf1 redirect=inner.example exp=why.example', 'fail'],
      ['v=spf1 exp= -all', 'permerror'],
      ['v=spf1 exp=%{q}.example -all', 'permerror'],
      ['v=spf1 exp=50%.example -all', 'permerror'],
    ],
  },
];

export const macroSections: readonly Section[] = [
  {
    title: '7.2: macro letters',
    vectors: [
      ...expands('%{s}.m.example', 'ada@example.com.m.example'),
      ...expands('%{l}.m.example', 'ada.m.example'),
      ...expands('%{o}.m.example', 'example.com.m.example'),
      ...expands('%{d}.m.example', 'example.com.m.example'),
      ...expands('%{i}.m.example', '192.0.2.7.m.example'),
      ...expands('%{i}.m.example', `${v6Nibbles}.m.example`, { ip: v6 }),
      ...expands('%{i}.m.example', '192.0.2.7.m.example', { ip: '::ffff:192.0.2.7' }),
      ...expands('%{v}.m.example', 'in-addr.m.example'),
      ...expands('%{v}.m.example', 'ip6.m.example', { ip: v6 }),
      ...expands('%{h}.m.example', 'mail.example.com.m.example'),
      ...expands('%{l}.%{o}.m.example', 'postmaster.example.com.m.example', { from: '@example.com' }),
      ...expands('%{ir}.%{v}.arpa.m.example', `${v6Arpa}.m.example`, { ip: v6 }),
      ...expands('%{o}.m.example', 'xn--bcher-kva.example.m.example', {
        from: 'ada@bücher.example',
        zone: { 'xn--bcher-kva.example': { TXT: ['v=spf1 exists:%{o}.m.example -all'] } },
      }),
    ],
  },
  {
    title: '7.2: macro letters for <>',
    zone: { 'mail.example.com': { TXT: ['v=spf1 exists:%{s}.%{l}.%{o}.%{h}.m.example -all'] } },
    vectors: [
      ['v=spf1 -all', 'fail', { from: null }],
      [
        'v=spf1 -all',
        'pass',
        {
          from: null,
          zone: {
            'postmaster@mail.example.com.postmaster.mail.example.com.mail.example.com.m.example': exists,
          },
        },
      ],
    ],
  },
  {
    title: '7.2: %{d} and %{o} within an include',
    zone: { 'inner.example': { TXT: ['v=spf1 exists:%{d}.%{o}.m.example -all'] } },
    vectors: [
      [
        'v=spf1 include:inner.example -all',
        'pass',
        { zone: { 'inner.example.example.com.m.example': exists } },
      ],
      [
        'v=spf1 include:inner.example -all',
        'fail',
        { zone: { 'example.com.example.com.m.example': exists } },
      ],
    ],
  },
  {
    title: '7.3: %{p}',
    zone: {
      '7.2.0.192.in-addr.arpa': { PTR: ['other.example', 'sub.example.com', 'example.com'] },
      '8.2.0.192.in-addr.arpa': { PTR: ['other.example', 'sub.example.com'] },
      '9.2.0.192.in-addr.arpa': { PTR: ['forged.example', 'other.example'] },
      '10.2.0.192.in-addr.arpa': { PTR: ['forged.example'] },
      '11.2.0.192.in-addr.arpa': 'SERVFAIL',
      [v6Arpa]: { PTR: ['other.example'] },
      'example.com': { A: ['192.0.2.7'] },
      'sub.example.com': { A: ['192.0.2.7', '192.0.2.8'] },
      'other.example': { A: ['192.0.2.7', '192.0.2.8', '192.0.2.9'], AAAA: [v6] },
      'forged.example': { A: ['203.0.113.1'] },
    },
    vectors: [
      ...expands('%{p}.m.example', 'example.com.m.example', { shows: 'the domain itself' }),
      ...expands('%{p}.m.example', 'sub.example.com.m.example', {
        ip: '192.0.2.8',
        shows: 'else a subdomain',
      }),
      ...expands('%{p}.m.example', 'other.example.m.example', { ip: '192.0.2.9', shows: 'else any name' }),
      ...expands('%{p}.m.example', 'unknown.m.example', { ip: '192.0.2.10', shows: 'not validated' }),
      ...expands('%{p}.m.example', 'unknown.m.example', { ip: '192.0.2.11', shows: 'DNS fails' }),
      ...expands('%{p}.m.example', 'unknown.m.example', { ip: '192.0.2.12', shows: 'no name' }),
      ...expands('%{p}.m.example', 'other.example.m.example', { ip: v6 }),
      ...expands('%{pr}.m.example', 'com.example.m.example'),
    ],
  },
  {
    title: '7.3: transformers and delimiters',
    vectors: [
      ...expands('%{d1}.m.example', 'com.m.example'),
      ...expands('%{d2}.m.example', 'example.com.m.example'),
      ...expands('%{d9}.m.example', 'example.com.m.example', { shows: 'more labels than there are' }),
      ...expands('%{d128}.m.example', 'example.com.m.example'),
      ...expands('%{dr}.m.example', 'com.example.m.example'),
      ...expands('%{d1r}.m.example', 'example.m.example', { shows: 'reversed before it is cut' }),
      ...expands('%{dR}.m.example', 'com.example.m.example'),
      ...expands('%{ir}.m.example', '7.2.0.192.m.example'),
      ...expands('%{i2}.m.example', '2.7.m.example'),
      ...expands('%{h2r}.m.example', 'example.mail.m.example'),
      ...expands('%{l-}.m.example', 'ada.king.m.example', { from: 'ada-king@example.com' }),
      ...expands('%{l}.m.example', 'ada-king.m.example', { from: 'ada-king@example.com' }),
      ...expands('%{l1-}.m.example', 'king.m.example', { from: 'ada-king@example.com' }),
      ...expands('%{lr-}.m.example', 'king.ada.m.example', { from: 'ada-king@example.com' }),
      ...expands('%{l-}.m.example', 'ada.king.m.example', {
        from: 'ada.king@example.com',
        shows: 'dots only',
      }),
      ...expands('%{l1r+}.m.example', 'ada.m.example', { from: 'ada+list@example.com' }),
      ...expands('%{l+-}.m.example', 'ada.king.list.m.example', { from: 'ada-king+list@example.com' }),
      ...expands('%{l1,}.m.example', 'king.m.example', { from: 'ada,king@example.com' }),
      ...expands('%{l1/}.m.example', 'king.m.example', { from: 'ada/king@example.com' }),
      ...expands('%{l1_}.m.example', 'king.m.example', { from: 'ada_king@example.com' }),
      ...expands('%{l1=}.m.example', 'king.m.example', { from: 'ada=king@example.com' }),
      ...expands('%{l1.-}.m.example', 'king.m.example', { from: 'a.da-king@example.com' }),
    ],
  },
  {
    title: '7.3: escapes',
    vectors: [
      ...expands('%{L}.m.example', 'a%26b%3dc.m.example', { from: 'a&b=c@example.com' }),
      ...expands('%{L}.m.example', 'a~b_c-d.m.example', { from: 'a~b_c-d@example.com', shows: 'unreserved' }),
      ...expands('%{S}.m.example', 'ada%40example.com.m.example'),
      ...expands('%{D}.m.example', 'example.com.m.example'),
      ...expands('%{L1-}.m.example', 'b%2bc.m.example', {
        from: 'a-b+c@example.com',
        shows: 'cut, then escaped',
      }),
      ...expands('a%%b.m.example', 'a%b.m.example'),
      ...expands('a%_b.m.example', 'a b.m.example'),
      ...expands('a%-b.m.example', 'a%20b.m.example'),
      ...expands('%{i}%%%{l}.m.example', '192.0.2.7%ada.m.example'),
    ],
  },
  {
    title: '7.3: a name above 253 characters loses labels on the left',
    vectors: [
      ...expands(
        `%{l}.${[long, long, long, 'y'.repeat(55)].join('.')}.m.example`,
        `${[long, long, long, 'y'.repeat(55)].join('.')}.m.example`,
        { from: 'king-of-the-long-names@example.com' },
      ),
    ],
  },
  {
    title: '4.8: what HELO says does not make a record wrong',
    zone: { 'helo.example.com': { TXT: ['v=spf1 -a:%{h} +all'] } },
    vectors: [
      ...["JUMPIN' JUPITER", '[192.0.2.7]', '192.0.2.7', 'OEMCOMPUTER', 'a..example', ''].flatMap(
        (helo): Vector[] => [
          ['v=spf1 a:%{H} -all', 'fail', { helo }],
          ['v=spf1 mx:%{h} ip4:192.0.2.7 -all', 'pass', { helo }],
          ['v=spf1 -exists:%{h} +all', 'pass', { helo }],
          ['v=spf1 -include:helo.%{d2} ip4:192.0.2.0/24 -all', 'fail', { helo }],
          ['v=spf1 include:%{h} -all', 'permerror', { helo }],
          ['v=spf1 redirect=%{h}', 'permerror', { helo }],
          ['v=spf1 a:%{h} ip4:1 -all', 'permerror', { helo }],
        ],
      ),
      [
        'v=spf1 exists:%{h}.m.example -all',
        'pass',
        { helo: 'OEMCOMPUTER', zone: { 'oemcomputer.m.example': { A: ['127.0.0.2'] } } },
      ],
    ],
  },
  {
    title: '7.1: syntax of macros',
    vectors: [
      ['v=spf1 exists:%.example.com +all', 'permerror'],
      ['v=spf1 exists:a%b.example.com +all', 'permerror'],
      ['v=spf1 exists:%d.example.com +all', 'permerror'],
      ['v=spf1 exists:%(d).example.com +all', 'permerror'],
      ['v=spf1 exists:%{d.example.com +all', 'permerror'],
      ['v=spf1 exists:%{}.example.com +all', 'permerror'],
      ['v=spf1 exists:%{e}.example.com +all', 'permerror', { shows: 'an unknown letter' }],
      ['v=spf1 exists:%{-}.example.com +all', 'permerror'],
      ['v=spf1 include:%{z}.example.com +all', 'permerror'],
      ['v=spf1 a:%{1d}.example.com +all', 'permerror'],
    ],
  },
];
