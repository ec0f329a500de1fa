/** Parts of messages: names, charsets, types, and text that breaks parsers. Add to these lists. */

// biome-ignore format: a list to add to
export const domains = ['a.example', 'b.a.example', 'c.example', 'xn--bcher-kva.example'] as const;

// biome-ignore format: a list to add to
export const charsets = [
  'utf-8', 'UTF8', 'us-ascii', 'iso-8859-1', 'iso-8859-15', 'windows-1252', 'koi8-r', 'gb18030', 'big5',
  'shift_jis', 'cp932', 'iso-2022-jp', 'euc-kr', 'utf-16', 'utf-16le', 'utf-16be', 'utf-7', 'utf-32',
  'unknown-8bit', 'x-user-defined', 'replacement', 'constructor', 'iso-2022-kr', 'hz-gb-2312', 'ibm037', '',
];
// biome-ignore format: a list to add to
export const encodings = [
  '7bit', '8bit', 'binary', 'base64', 'quoted-printable', 'BASE64 (x)', 'x-uuencode', '', '"base64"',
];
// biome-ignore format: a list to add to
export const types = [
  'text/plain', 'text/html', 'text/plain', 'text/html', 'text/calendar', 'text/enriched', 'text/x-amp-html',
  'image/png', 'application/pdf', 'application/octet-stream', 'message/rfc822', 'message/delivery-status',
  'message/feedback-report', 'message/disposition-notification', 'text/rfc822-headers',
  'application/pkcs7-mime', 'application/pgp-encrypted', 'message/partial', 'message/external-body',
  'TEXT / PLAIN', 'message / rfc822', 'multipart/*', 'application/pdf name="x"', 'application/*', 'text', 'text/', '/plain', 'a/b/c', 'x'.repeat(300),
];
// biome-ignore format: a list to add to
export const multiparts = [
  'mixed', 'alternative', 'related', 'digest', 'signed', 'report', 'encrypted', 'form-data', 'x',
];

/** What parsers stumble over, alone and spliced into anything. */
// biome-ignore format: a list to add to
export const tokens = [
  '\r\n', '\r\n\r\n', '\n', '\n\n', '\r', '\r\r\n', '\n\r', '\r\n ', '\r\n\t', '\0', '\xff', '\xed\xa0\x80',
  '\x80', '--b', '--b--', '\r\n--b\r\n', '\r\n--b--\r\n', '--', '=?', '?=', '=?utf-8?B?', '=?utf-8?Q?',
  '=?utf-16?B?2AA=?=', '=?utf-8?Q?=ED=A0=80=00=0D=0A?=', '=?utf-8*en?q?a?=', '=?iso-2022-jp?B?GyRCJCI=?=',
  '=?x?y?z?=', '=?utf-8?b?=00?=', '"', '\\', '\\"', '(', ')', '((((', '<', '>', '<<', '@', '.', '..', ',',
  ';', ':', ':;', '=', '==', '%00', '%', '*', '=0D=0A', '=00', '=', '=\r\n', '= \r\n', '=3', '=GG', 'From: ',
  '\r\nFrom: a@a.example\r\n', '\r\nSubject: ', '\r\nContent-Type: multipart/mixed; boundary=b\r\n',
  '\r\nContent-Type: ', '\r\nContent-Transfer-Encoding: base64\r\n', 'boundary=', 'boundary=""',
  'boundary="b "', 'charset=', "filename*=utf-8''%00", 'filename*0*=', 'filename*1=',
  'filename="../../etc/passwd"', 'filename="a\\b"', 'name=', '\xef\xbb\xbf', '\xfe\xff', '\xff\xfe',
  '\x1b$B', '\x0e', '~{', '+AGE-', '&#0;', '&#x110000;', '&amp', '<script>', '<!--', '</style', '<title>',
  '\xe2\x80\xa8', '\xc2\x85', '\xe2\x80\xae', '\r\nDKIM-Signature: ', '\r\nARC-Seal: ', 'v=1; ', 'l=0; ',
  'h=from:from; ', 'bh=; ', 'x=1; ', 't=99999999999; ', 'c=; ', '__proto__', 'constructor',
  '\r\n__proto__: x\r\n', 'undisclosed-recipients:;', '\r\n \r\n', '\r\nwords\r\n',
  '\r\nbegin 644 x\r\n#86)C\r\n`\r\nend\r\n', 'YQ==\r\n', '=?iso-8859-1?Q?\xe9?=', ' name="x" ', ' PM ', ' GMT+0200',
  '\xe3\x80\x80', '\xfe\xff\0a', 'a'.repeat(999), ' '.repeat(600),
  '\r\nFinal-Recipient: rfc822; a@a.example\r\nAction: failed\r\nStatus: 5.1.1\r\n', '\r\nDiagnostic-Code: smtp; 550 ',
  '\r\nFeedback-Type: abuse\r\nOriginal-Rcpt-To: a@a.example\r\n', '\r\nOriginal-Message-ID: <a@a.example>\r\n',
];

// biome-ignore format: a list to add to
export const words = [
  'hello', 'Gr\xfc\xdfe', '\xc3\xa9t\xc3\xa9', '\xf0\x9f\x92\x8c', '\xe6\x97\xa5\xe6\x9c\xac', 'a', '1', '-',
  'Re:', 'x'.repeat(80),
];
