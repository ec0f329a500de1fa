/** What a server repeats of a login is removed, in every form that the login is sent in. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hideSecrets } from '../src/net/hide-secrets.ts';

const base64 = (text: string) => Buffer.from(text).toString('base64');
const password = 'pa"ss\\w+rd 1/ü';
const hide = hideSecrets([password]);

const repeated: [title: string, text: string, shown: string][] = [
  ['plain', `Unknown command ${password}`, 'Unknown command [removed]'],
  ['as an IMAP string', 'LOGIN "u" "pa\\"ss\\\\w+rd 1/ü" failed', 'LOGIN "u" "[removed]" failed'],
  ['in JSON', `{"password":${JSON.stringify(password)}}`, '{"password":"[removed]"}'],
  ['in a URL', `p=${encodeURIComponent(password)}&x=1`, 'p=[removed]&x=1'],
  ['in a form', `${new URLSearchParams({ p: password })}&x=1`, 'p=[removed]&x=1'],
  ['AUTH PLAIN', `AUTH PLAIN ${base64(`\0u\0${password}`)} is wrong`, 'AUTH PLAIN [removed] is wrong'],
  ['with an authorization id', `"${base64(`u\0u\0${password}`)}"`, '"[removed]"'],
  ['AUTH LOGIN', `What is ${base64(password)}?`, 'What is [removed]?'],
  ['without padding', base64(`\0user\0${password}`).replace(/=+$/, ''), '[removed]'],
  ['in other letters', password.toUpperCase(), '[removed]'],
  ['twice', `${password} ${password}`, '[removed] [removed]'],
  ['with its blank as another', password.replace(' ', '\t'), '[removed]'],
  ['cut by the server', 'Unknown: "LOGIN u pa\\"ss..."', 'Unknown: "LOGIN u [removed]'],
  ['base64 that was cut', `AUTH PLAIN ${base64(`\0us\0${password}`).slice(0, 12)}`, 'AUTH PLAIN [removed]'],
  ['at the place where we cut', `${'x'.repeat(3995)} ${password}`, `${'x'.repeat(3995)} [rem`],
  ['a usual end of 200 letters', `${'x'.repeat(188)} http://help`, `${'x'.repeat(188)} http://help`],
  ['nothing of it', '535 5.7.8 Bad credentials, try paxos', '535 5.7.8 Bad credentials, try paxos'],
];
for (const [title, text, shown] of repeated) test(title, () => assert.equal(hide(text), shown));

test('an access token inside XOAUTH2 and OAUTHBEARER', () => {
  const hideToken = hideSecrets(['ya29.token-value']);
  for (const text of [
    'user=ada\x01auth=Bearer ya29.token-value\x01\x01',
    'n,a=ada,\x01port=993\x01auth=Bearer ya29.token-value\x01\x01',
  ])
    assert.equal(hideToken(`No: ${base64(text)}`), 'No: [removed]');
  assert.equal(hideToken('Bearer ya29.token-value has expired'), 'Bearer [removed] has expired');
});

test('a very short secret is removed where it stands alone, and words stay readable', () => {
  const hideShort = hideSecrets(['ab']);
  assert.equal(hideShort('LOGIN "u" "ab" about abacus'), 'LOGIN "u" "[removed]" about abacus');
  assert.equal(hideShort(`AUTH PLAIN ${base64('\0user\0ab')}`), 'AUTH PLAIN [removed]');
});

test('several secrets; without one the text stays', () => {
  assert.equal(hideSecrets(['refresh-1', null, 'client-1'])('refresh-1 client-1'), '[removed] [removed]');
  assert.equal(hideSecrets([null, ''])('anything'), 'anything');
});

const phrase = 'Tr0ub4dor&3-horse-staple';
const token = `ya29.${'aB3_x-9Zq'.repeat(40)}`;

test('base64 that the server wrapped, at any place', () => {
  const hidePhrase = hideSecrets([phrase]);
  const plain = base64(`\0ada@post.example\0${phrase}`);
  for (let at = 1; at < plain.length; at++)
    for (const blank of [' ', '\n', '\r\n ']) {
      const shown = hidePhrase(`What is AUTH PLAIN ${plain.slice(0, at)}${blank}${plain.slice(at)}?`);
      assert.match(shown, /^What is AUTH PLAIN .*\[removed\]\?$/s);
      for (const piece of shown.match(/[\w+/]+/g) ?? [])
        assert.ok(!/dor|horse|staple/.test(Buffer.from(piece, 'base64').toString()), shown);
    }
});

test('a password that is broken over the lines of a reply, at any place', () => {
  for (const secret of ['Zq7"Wk\\é&x%Pv4Lm', 'k3y!x'])
    for (let at = 1; at < secret.length; at++) {
      const shown = hideSecrets([secret])(`Wrong: ${secret.slice(0, at)}\n${secret.slice(at)} (u)`);
      assert.equal(shown, 'Wrong: [removed]\n[removed] (u)');
    }
});

test('XOAUTH2 in lines of 76 characters', () => {
  const sent = base64(`user=ada@post.example\x01auth=Bearer ${token}\x01\x01`);
  const wrapped = sent.match(/.{1,76}/g)?.join('\n') ?? '';
  const shown = hideSecrets([token])(`No: ${wrapped}\nBye`);
  assert.match(shown, /^No: (?:\[removed\]\s)+AQE=\sBye$/);
});

test('a piece from the middle or the end, in each form', () => {
  const hidePhrase = hideSecrets([phrase]);
  assert.equal(hidePhrase('LOGIN u ...-horse-staple'), 'LOGIN u ...[removed]');
  assert.equal(hidePhrase('LOGIN u "...4dor&3-ho..."'), 'LOGIN u "...[removed]..."');
  assert.equal(hidePhrase('p=...4dor%263-ho...'), 'p=...[removed]...');
  assert.equal(hidePhrase(`...${base64(phrase).slice(9, 21)}...`), '...[removed]...');
  assert.equal(hidePhrase('The horse is not stapled'), 'The horse is not stapled');
});

test('a secret of the largest size in a text of the largest size', () => {
  const secret = 'a'.repeat(4096);
  assert.equal(hideSecrets([secret])('a'.repeat(4096)), '[removed]');
  assert.equal(hideSecrets([secret])(base64('a'.repeat(3000))), '[removed]');
});
