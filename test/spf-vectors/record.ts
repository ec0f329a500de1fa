/** SPF vectors: the identity, the choice of the record, its syntax, and the limits (RFC 7208 sections 2 and 4). */
import type { Section, Zone } from './vector.ts';

const names = (count: number, domain: string) => Array.from({ length: count }, (_, n) => `n${n}.${domain}`);
const record = (terms: readonly string[], end = '-all') => `v=spf1 ${terms.join(' ')} ${end}`;
/** Each name with the same answer. */
const zoneOf = (list: readonly string[], answer: Zone[string]): Zone =>
  Object.fromEntries(list.map((name) => [name, answer]));

const includes = names(11, 'inc.example');
const hosts = names(11, 'host.example');
const longLabel = 'l'.repeat(63);
const denials = names(6, 'deny.example').map((name) => `include:${name}`);
const tenIncludes = includes.slice(0, 10).map((name) => `include:${name}`);

export const recordSections: readonly Section[] = [
  {
    title: '2.3 and 2.4: the identity that is checked',
    zone: {
      'mail.example.com': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
      'quiet.example.com': { TXT: ['nothing about SPF'] },
      'broken.example.com': 'SERVFAIL',
    },
    vectors: [
      ['v=spf1 -all', 'fail', { shows: 'MAIL FROM is checked, not HELO' }],
      ['v=spf1 -all', 'pass', { from: null, shows: 'HELO is checked for <>' }],
      ['v=spf1 +all', 'fail', { from: null, ip: '192.0.2.8', shows: 'HELO is checked for <>' }],
      ['v=spf1 +all', 'none', { from: null, helo: 'quiet.example.com' }],
      ['v=spf1 +all', 'none', { from: null, helo: 'absent.example.com' }],
      ['v=spf1 +all', 'temperror', { from: null, helo: 'broken.example.com' }],
      ['v=spf1 +all', 'pass', { from: null, helo: 'Mail.EXAMPLE.com', shows: 'case does not matter' }],
      ['v=spf1 +all', 'none', { from: null, helo: 'mail', shows: 'a name of one label' }],
      ['v=spf1 +all', 'none', { from: null, helo: '[192.0.2.7]', shows: 'an address is not a name' }],
      ['v=spf1 +all', 'none', { from: null, helo: '[IPv6:2001:db8::7]' }],
      ['v=spf1 +all', 'none', { from: null, helo: null, shows: 'nothing to check' }],
    ],
  },
  {
    title: '4.3: initial processing',
    zone: { 'xn--bcher-kva.example': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] } },
    vectors: [
      ['v=spf1 +all', 'pass', { from: 'ada@EXAMPLE.Com' }],
      ['v=spf1 +all', 'pass', { from: '@example.com', shows: 'without a local part' }],
      ['v=spf1 +all', 'pass', { from: '"a@b"@example.com', shows: 'an @ within quotes' }],
      ['v=spf1 +all', 'none', { from: 'ada@localhost', shows: 'a domain of one label' }],
      ['v=spf1 +all', 'none', { from: 'ada@example..com', shows: 'an empty label' }],
      ['v=spf1 +all', 'none', { from: `ada@${longLabel}l.example.com`, shows: 'a label of 64 letters' }],
      ['v=spf1 +all', 'none', { from: 'ada@[192.0.2.7]', shows: 'an address literal' }],
      ['v=spf1 -all', 'pass', { from: 'ada@bücher.example', shows: 'U-labels become A-labels (RFC 8616)' }],
      ['v=spf1 -all', 'pass', { from: 'ada@xn--bcher-kva.example', shows: 'A-labels stay' }],
    ],
  },
  {
    title: '4.4: record lookup',
    zone: {
      'servfail.example': 'SERVFAIL',
      'refused.example': 'REFUSED',
      'notimp.example': 'NOTIMP',
      'addresses.example': { A: ['192.0.2.7'] },
      'alias.example': { CNAME: ['other.example'], TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
      [`${longLabel}.example`]: { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
    },
    vectors: [
      ['v=spf1 +all', 'none', { from: 'ada@absent.example', shows: 'NXDOMAIN' }],
      ['v=spf1 +all', 'none', { from: 'ada@addresses.example', shows: 'no TXT record' }],
      ['v=spf1 +all', 'temperror', { from: 'ada@servfail.example' }],
      ['v=spf1 +all', 'temperror', { from: 'ada@refused.example' }],
      ['v=spf1 +all', 'temperror', { from: 'ada@notimp.example' }],
      ['v=spf1 -all', 'pass', { from: 'ada@alias.example', shows: 'through a CNAME' }],
      ['v=spf1 -all', 'pass', { from: `ada@${longLabel}.example`, shows: 'a label of 63 letters' }],
    ],
  },
  {
    title: '4.5: selecting records',
    vectors: [
      [['spf2.0/pra -all', 'v=DMARC1; p=none', 'v=spf1 ip4:192.0.2.7 -all'], 'pass'],
      [['v=spf1 -all', 'v=spf1 -all'], 'permerror', { shows: 'the same record twice' }],
      [['v=spf1 +all', 'V=SPF1 -all'], 'permerror'],
      [['v=spf10 +all', 'v=spf1 -all'], 'fail'],
      [['v=spf1', 'v=spf1 -all'], 'permerror', { shows: 'the version alone is a record' }],
      ['V=sPf1 +all', 'pass'],
      ['v=spf1', 'neutral'],
      ['v=spf1   ', 'neutral'],
      ['v=spf10 +all', 'none'],
      ['v=spf1+all', 'none'],
      ['v=spf1-all', 'none'],
      ['v=spf2 +all', 'none'],
      ['v spf1 +all', 'none'],
      ['"v=spf1 +all"', 'none', { shows: 'quotes that belong to the text' }],
    ],
  },
  {
    title: '3.3: several strings are joined without a space',
    vectors: [
      // The string ends after 255 bytes, inside the last address.
      [record(Array.from({ length: 17 }, (_, n) => `ip4:10.1.1.${n}`).concat('ip4:192.0.2.7')), 'pass'],
      [record(names(30, 'x=y'), 'ip4:192.0.2.7 -all').replaceAll('.x=y', '=some-value'), 'pass'],
    ],
  },
  {
    title: '4.6.1: terms',
    vectors: [
      ['v=spf1  ip4:198.51.100.1   ip4:192.0.2.7    -all   ', 'pass', { shows: 'any number of spaces' }],
      ['v=spf1 IP4:192.0.2.7 -ALL', 'pass', { shows: 'names in any case' }],
      ['v=spf1 +ip4:192.0.2.7 -all', 'pass'],
      ['v=spf1 -ip4:192.0.2.7 +all', 'fail'],
      ['v=spf1 ~ip4:192.0.2.7 +all', 'softfail'],
      ['v=spf1 ?ip4:192.0.2.7 +all', 'neutral'],
      ['v=spf1 *all', 'permerror'],
      ['v=spf1 --all', 'permerror'],
      ['v=spf1 - all', 'permerror'],
      ['v=spf1 allow -all', 'permerror', { shows: 'an unknown mechanism' }],
      ['v=spf1 -all ip5:192.0.2.7', 'permerror', { shows: 'an unknown mechanism after a match' }],
      ['v=spf1 ipv4:192.0.2.7 -all', 'permerror'],
      ['v=spf1 192.0.2.7 -all', 'permerror'],
      ['v=spf1 default=deny -all', 'fail', { shows: 'unknown modifiers are ignored' }],
      ['v=spf1 tracking= +all', 'pass', { shows: 'the value of an unknown modifier may be empty' }],
      ['v=spf1 a-b_c.d9=x:y/z +all', 'pass'],
      ['v=spf1 n=%{l}.%%.%{d2r} +all', 'pass'],
      ['v=spf1 note=1 note=2 +all', 'pass', { shows: 'an unknown modifier twice' }],
      ['v=spf1 9lives=yes +all', 'permerror', { shows: 'a modifier that begins with a digit' }],
      ['v=spf1 =yes +all', 'permerror', { shows: 'a modifier without a name' }],
      ['v=spf1 note=100% +all', 'permerror', { shows: 'a wrong macro in an unknown modifier' }],
      ['v=spf1 note=%{y} +all', 'permerror'],
      ['v=spf1 ip4:192.0.2.7 ünknown=1', 'permerror', { shows: 'not ASCII' }],
      [
        'v=spf1 ip4:192.0.2.7 include:bücher.example',
        'permerror',
        { shows: 'U-labels in a record (RFC 8616)' },
      ],
    ],
  },
  {
    title: '4.6.2 and 4.7: from left to right, neutral at the end',
    zone: { 'down.example': 'SERVFAIL', 'no.example': { TXT: ['v=spf1 -all'] } },
    vectors: [
      ['v=spf1 ~ip4:192.0.2.7 -ip4:192.0.2.7', 'softfail'],
      ['v=spf1 ip4:192.0.2.7 include:down.example -all', 'pass', { shows: 'later terms are not evaluated' }],
      ['v=spf1 include:down.example ip4:192.0.2.7 -all', 'temperror'],
      ['v=spf1 -all ip4:192.0.2.7', 'fail'],
      ['v=spf1 ip4:198.51.100.1', 'neutral'],
      ['v=spf1 include:no.example', 'neutral'],
      ['v=spf1 note=1', 'neutral'],
    ],
  },
  {
    title: '4.6.4: at most 10 terms that query DNS',
    zone: {
      ...zoneOf(includes, { TXT: ['v=spf1 ip4:198.51.100.1 -all'] }),
      ...zoneOf(hosts, { A: ['198.51.100.1'], AAAA: ['2001:db8::1'], MX: ['10 host.example'] }),
      ...zoneOf(names(6, 'deny.example'), { TXT: ['v=spf1 -exists:host.example'] }),
      'host.example': { A: ['198.51.100.1'], AAAA: ['2001:db8::1'] },
      'last.example': { TXT: ['v=spf1 ip4:192.0.2.7 -all'] },
      'six.example': { TXT: [record(hosts.slice(0, 5).map((name) => `a:${name}`))] },
      'loop.example': { TXT: ['v=spf1 redirect=loop.example'] },
      'ring.example': { TXT: ['v=spf1 include:gnir.example'] },
      'gnir.example': { TXT: ['v=spf1 include:ring.example'] },
      '7.2.0.192.in-addr.arpa': { PTR: ['host.example'] },
    },
    vectors: [
      [record(tenIncludes, 'ip4:192.0.2.7 -all'), 'pass', { shows: '10 includes' }],
      [record([...tenIncludes, 'include:n10.inc.example'], '+all'), 'permerror', { shows: '11 includes' }],
      [
        record(
          hosts.slice(0, 10).map((name) => `a:${name}`),
          '+all',
        ),
        'pass',
        { shows: '10 a' },
      ],
      [
        record(
          hosts.map((name) => `a:${name}`),
          '+all',
        ),
        'permerror',
        { shows: '11 a' },
      ],
      [
        record(
          hosts.map((name) => `mx:${name}`),
          '+all',
        ),
        'permerror',
        { shows: '11 mx' },
      ],
      [record(denials.slice(0, 5), '+all'), 'pass', { shows: '5 includes with an exists each' }],
      [record(denials, '+all'), 'permerror', { shows: '6 includes with an exists each' }],
      [record([...tenIncludes.slice(1), 'ptr'], '+all'), 'pass', { shows: '9 includes and ptr' }],
      [record([...tenIncludes, 'ptr'], '+all'), 'permerror', { shows: '10 includes and ptr' }],
      [record([...tenIncludes, 'a:host.example'], '+all'), 'permerror'],
      [record([...tenIncludes, 'a:host.example'], '+all'), 'permerror', { ip: '2001:db8::7' }],
      [record(tenIncludes.slice(1), 'redirect=last.example'), 'pass', { shows: '9 includes and redirect' }],
      [record(tenIncludes, 'redirect=last.example'), 'permerror', { shows: '10 includes and redirect' }],
      [record(['include:six.example', ...tenIncludes.slice(6)], '+all'), 'pass', { shows: '6 and 4' }],
      [record(['include:six.example', ...tenIncludes.slice(5)], '+all'), 'permerror', { shows: '6 and 5' }],
      [
        record(
          names(40, 'x').map((_, n) => `ip4:10.0.0.${n} ip6:2001:db8::${n}`),
          '+all',
        ),
        'pass',
      ],
      [record(tenIncludes, 'exp=n0.host.example -all'), 'fail', { shows: 'exp does not count' }],
      ['v=spf1 redirect=loop.example', 'permerror', { shows: 'a redirect to itself' }],
      ['v=spf1 include:ring.example +all', 'permerror', { shows: 'two records that include each other' }],
      [
        record([...tenIncludes.slice(1), 'exists:%{p}.no.example'], '+all'),
        'permerror',
        { shows: '%{p} counts' },
      ],
    ],
  },
  {
    title: '4.6.4: at most 2 void lookups',
    zone: { 'empty.example': { TXT: ['no address'] }, 'host.example': { A: ['198.51.100.1'] } },
    vectors: [
      ['v=spf1 a:v1.example exists:v2.example +all', 'pass', { shows: 'two names that do not exist' }],
      ['v=spf1 a:v1.example mx:v2.example exists:v3.example +all', 'permerror'],
      [
        'v=spf1 a:v1.example a:empty.example mx:empty.example +all',
        'permerror',
        { shows: 'names without such records' },
      ],
      ['v=spf1 a:v1.example a:host.example mx:v2.example a:host.example +all', 'pass'],
      ['v=spf1 a:v1.example a:v2.example a:v3.example +all', 'permerror', { ip: '2001:db8::7' }],
      [
        'v=spf1 ip4:192.0.2.7 a:v1.example a:v2.example a:v3.example',
        'pass',
        { shows: 'a match ends the evaluation' },
      ],
    ],
  },
  {
    title: '4.6.4: at most 10 names of an mx or a ptr',
    zone: {
      ...zoneOf(hosts, { A: ['198.51.100.1'] }),
      'n9.host.example': { A: ['192.0.2.7'] },
      'n10.host.example': { A: ['192.0.2.8'] },
      'ten.example': { MX: hosts.slice(0, 10).map((name, n) => `${n} ${name}`) },
      'eleven.example': { MX: hosts.map((name, n) => `${n} ${name}`) },
      '7.2.0.192.in-addr.arpa': { PTR: hosts.slice(0, 10) },
      '8.2.0.192.in-addr.arpa': { PTR: hosts },
    },
    vectors: [
      ['v=spf1 mx:ten.example -all', 'pass', { shows: 'the tenth mail server' }],
      ['v=spf1 mx:ten.example mx:ten.example -all', 'fail', { ip: '192.0.2.9', shows: '10 for each term' }],
      ['v=spf1 mx:eleven.example -all', 'permerror', { ip: '192.0.2.9' }],
      ['v=spf1 mx:eleven.example -all', 'permerror', { ip: '192.0.2.8', shows: 'the eleventh mail server' }],
      ['v=spf1 ptr:host.example -all', 'pass', { shows: 'the tenth name of the client' }],
      ['v=spf1 ptr:host.example -all', 'fail', { ip: '192.0.2.8', shows: 'the eleventh name is ignored' }],
    ],
  },
];
