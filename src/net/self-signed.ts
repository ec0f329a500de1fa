/**
 * Makes a self-signed certificate, for operators without one. It is enough for the opportunistic TLS between mail servers, which
 * encrypts and does not check the name. The key never leaves the process.
 *
 * Without a package, because selfsigned 5.5 fails when npm shares its ASN.1 library with mailauth's (2.8 beside 2.11: "Cannot get
 * schema"), and takes 0.5 s to load.
 */
import { generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import { domainToASCII } from 'node:url';

const days = 3650;
const dayMs = 86_400_000;
const maxCommonName = 64;

export function makeSelfSigned(host: string, now: Date): { cert: string; key: string } {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
  const name = domainToASCII(host) || 'localhost';
  const issuerAndSubject = commonName(name.length <= maxCommonName ? name : 'mail');
  // RFC 5280 §4.1: version 3, serial, algorithm, issuer, validity, subject, key, extensions.
  const body = sequence(
    tagged(0, integer(Buffer.from([2]))),
    integer(Buffer.concat([Buffer.from([1]), randomBytes(15)])),
    ecdsaWithSha256,
    issuerAndSubject,
    // From yesterday, for clients whose clock is slow.
    sequence(time(new Date(now.getTime() - dayMs)), time(new Date(now.getTime() + days * dayMs))),
    issuerAndSubject,
    publicKey.export({ type: 'spki', format: 'der' }),
    tagged(3, sequence(sequence(subjectAltName, octets(sequence(element(0x82, Buffer.from(name))))))),
  );
  const signature = bits(sign('sha256', body, privateKey));
  return {
    cert: toPem(sequence(body, ecdsaWithSha256, signature)),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

function toPem(der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n');
}

/** DER: tag, length, content. */
function element(tag: number, ...content: Buffer[]): Buffer {
  const { length } = Buffer.concat(content);
  const head =
    length < 0x80 ? [length] : length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.from([tag, ...head]), ...content]);
}

const sequence = (...content: Buffer[]) => element(0x30, ...content);
const tagged = (number: number, content: Buffer) => element(0xa0 + number, content);
const integer = (content: Buffer) => element(0x02, content);
const bits = (content: Buffer) => element(0x03, Buffer.from([0]), content);
const octets = (content: Buffer) => element(0x04, content);
const objectId = (hex: string) => element(0x06, Buffer.from(hex, 'hex'));

/** RFC 5280 §4.1.2.5: two digits for the year until 2049. */
function time(date: Date): Buffer {
  const text = `${date.toISOString().slice(0, 19).replace(/\D/g, '')}Z`;
  return date.getUTCFullYear() < 2050
    ? element(0x17, Buffer.from(text.slice(2)))
    : element(0x18, Buffer.from(text));
}

function commonName(name: string): Buffer {
  return sequence(element(0x31, sequence(objectId('550403'), element(0x0c, Buffer.from(name)))));
}

const subjectAltName = objectId('551d11');
const ecdsaWithSha256 = sequence(objectId('2a8648ce3d040302'));
