/**
 * Where Posthorn's SPF result is not the one of RFC 7208. mailauth evaluates a record term by term and forgives mistakes in it
 * (its docs/spf.md, "Strict Mode"). Its strict mode is off on purpose: a mistake in the record of an honest sender would fail SPF
 * and DMARC, although the record lists the server.
 */
import type { Exception } from './vector.ts';

const exists = { A: ['127.0.0.2'] };
const v6 = '2001:db8:1:2::7';

export const exceptions: readonly Exception[] = [
  {
    section: '4.6',
    reason: 'A mistake after the term that matches is not noticed.',
    cases: [
      ['v=spf1 -all ip6', 'permerror', 'fail'],
      ['v=spf1 +all ip4', 'permerror', 'pass'],
      ['v=spf1 ip4:192.0.2.7 ip4:192.0.2.777 -all', 'permerror', 'pass'],
      ['v=spf1 ip4:192.0.2.7 include: -all', 'permerror', 'pass'],
      ['v=spf1 ip4:192.0.2.7 a/33 -all', 'permerror', 'pass'],
      ['v=spf1 ip4:192.0.2.7 exists:%{y}.example.com -all', 'permerror', 'pass'],
    ],
  },
  {
    section: '4.5',
    reason:
      'Spaces before the version are skipped. A tab is a space, and then a character that is not allowed.',
    cases: [
      [' v=spf1 ip4:192.0.2.7 -all', 'none', 'pass'],
      ['v=spf1\tip4:192.0.2.7 -all', 'none', 'permerror'],
    ],
  },
  {
    section: '6.2',
    reason: 'The explanation is not used, so mistakes in exp are not noticed.',
    cases: [
      ['v=spf1 exp=why -all', 'permerror', 'fail'],
      ['v=spf1 exp=why.example/24 -all', 'permerror', 'fail'],
      ['v=spf1 exp=one.example exp=two.example -all', 'permerror', 'fail'],
    ],
  },
  {
    section: '7.2',
    reason: 'The macros of explanations, c, r and t, are expanded in all terms.',
    cases: [
      ['v=spf1 exists:%{c}.m.example -all', 'permerror', 'pass', { zone: { '192.0.2.7.m.example': exists } }],
      [
        'v=spf1 exists:%{r}.m.example -all',
        'permerror',
        'pass',
        { zone: { 'mx.example.net.m.example': exists } },
      ],
      ['v=spf1 exists:%{t}.m.example -all', 'permerror', 'fail'],
    ],
  },
  {
    section: '7.1',
    reason: 'A wrong transformer is ignored.',
    cases: [
      [
        'v=spf1 exists:%{d0}.m.example -all',
        'permerror',
        'pass',
        { zone: { 'example.com.m.example': exists } },
      ],
      ['v=spf1 exists:%{d1x}.m.example -all', 'permerror', 'pass', { zone: { 'com.m.example': exists } }],
      [
        'v=spf1 exists:%{dr1}.m.example -all',
        'permerror',
        'pass',
        { zone: { 'com.example.m.example': exists } },
      ],
    ],
  },
  {
    section: '5.6',
    reason: 'An address of the other type is a term that does not match. A second length is ignored.',
    cases: [
      ['v=spf1 ip4:2001:db8::7 -all', 'permerror', 'fail'],
      ['v=spf1 ip6:192.0.2.7 -all', 'permerror', 'fail'],
      ['v=spf1 ip6:2001:db8::/32//64 -all', 'permerror', 'fail', { ip: v6 }],
      ['v=spf1 ip4:192.0.2.7/00 -all', 'permerror', 'pass'],
    ],
  },
  {
    section: '4.6.4',
    reason: 'A host that has only addresses of the other type is not a void lookup.',
    cases: [
      [
        'v=spf1 a:h1.example a:h2.example a:h3.example ip6:2001:db8::/32 -all',
        'permerror',
        'pass',
        {
          ip: v6,
          zone: {
            'h1.example': { A: ['198.51.100.1'] },
            'h2.example': { A: ['198.51.100.2'] },
            'h3.example': { A: ['198.51.100.3'] },
          },
        },
      ],
    ],
  },
  {
    section: '4.8',
    reason:
      'A name that a macro makes of the sender and that is not a domain is a mistake, not a term that does not match.',
    cases: [['v=spf1 a:%{l} ip4:192.0.2.7 -all', 'pass', 'permerror']],
  },
  {
    section: '4.8, with RFC 8616 section 4',
    reason: 'A local part that is not ASCII becomes an A-label, and may match.',
    cases: [
      [
        'v=spf1 exists:%{l}.m.example -all',
        'fail',
        'pass',
        { from: 'adä@example.com', zone: { 'xn--ad-wia.m.example': exists } },
      ],
    ],
  },
];
