/** Parts of requests: names, values and paths, most of them unusual. Add to these lists. */

// biome-ignore format: a list to add to
export const oddTexts = [
  '', ' ', '\0', '\u202e', '💌', 'é', "'; drop table users; --", '{{7*7}}', '../../etc/passwd', '%', '%s',
  '\\', '"', '\ud800', 'null', 'true', '0', '-1', '1e999', 'a@b', '@', 'xn--a.example', '*.example',
  'x'.repeat(300), 'x'.repeat(5000), '[]', '{"a":{}}', '{"a":"\\u0000"}', '__proto__', 'constructor',
  'toString', '\n', '\r\n', '\u2028', '😀'.repeat(200), 'İ', 'ß', '\ufeff',
];
// biome-ignore format: a list to add to
export const oddTimes = [
  '2999-01-01T00:00:00Z', '9999-12-31T23:59:59-23:59', '0000-00-00T00:00:00Z', '2026-02-31T00:00:00Z',
  '2026-01-01', '0001-01-01T00:00:00+15:59', '2026-01-31T24:00:00Z', '2026-01-31t12:00:00.123456789z',
];
// biome-ignore format: a list to add to
export const urls = [
  'http://127.0.0.1:9/h', 'https://example.com/h', 'http://[::1]:99999/', 'http://[::ffff:127.0.0.1]/',
  'https://user:pw@example.com', 'http://0x7f.1/', 'http://１２７.0.0.1/', 'ftp://x', 'http:x',
  'http://localhost./', 'https://xn--a/', `http://127.0.0.1/${'a'.repeat(2100)}`, 'http://a b/',
  'http://%00/',
];
// biome-ignore format: a list to add to
export const numbers = [0, -0, 1, -1, 0.5, 1e21, 2 ** 31, 2 ** 53, -(2 ** 63), 1001];
// biome-ignore format: a list to add to
export const segments = [
  '%2e%2e', '%2F%2F', 'a%2fb', '%00', '%zz', '%', '%ff', '.', '..', '', ':id', '{id}', '*', '%F0%9F%92%8C',
  '%0d%0a', '0', '1', '-1', '99999999999', '\u00e9', ' ', '\0', ';', '%3f', '#',
];
// biome-ignore format: a list to add to
export const hosts = [
  'http://localhost', 'http://x:99999', 'http://[', 'HTTP://a', 'https://a@b', 'http://', 'http://%',
  `http://${'h'.repeat(5000)}`, 'x:', '//a', 'http://a b', 'http:',
];
// biome-ignore format: a list to add to
export const methods = [
  'GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'QUERY', 'TRACE', 'PROPFIND', 'PURGE',
  'M-SEARCH',
];
// biome-ignore format: a list to add to
export const types = [
  'text/plain', 'application/merge-patch+json', 'multipart/form-data', 'application/json; charset=x',
  'message/rfc822', ';', '', 'application/json, text/plain', 'APPLICATION/JSON',
  'application/x-www-form-urlencoded',
];
// biome-ignore format: a list to add to
export const headerNames = [
  'x-request-id', 'accept', 'accept-encoding', 'origin', 'range', 'if-match', 'if-none-match', 'if-range',
  'cookie', 'x-http-method-override', 'x-recipient', 'x-forwarded-host', 'host', 'expect', 'upgrade', 'te',
  'content-encoding', 'accept-version', 'connection',
];
// biome-ignore format: a list to add to
export const headerTexts = [
  '', 'x', 'é', 'a b', 'x'.repeat(300), '"', 'null', '*/*', 'gzip', '-1', 'bytes=0-1', 'bytes=5-1',
  'bytes=-0', 'bytes=99999999999999999999-', 'Bearer', '*', '100-continue', 'websocket', 'h2c', 'a,b,,c',
  'close', '1.0.0',
  // No `upgrade`: Node drops without a word what is pipelined behind `connection: upgrade` (24.21, node:http by itself too).
];
// biome-ignore format: a list to add to
export const dictionary = [
  '\0', '\xff', '"', '{', '}', '[', ']', ',', ':', '\\u0000', '\\ud800', 'null', '1e999', '\xed\xa0\x80',
  '"__proto__":', '\xef\xbb\xbf', ' ',
];
