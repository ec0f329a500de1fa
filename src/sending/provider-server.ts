/** The SMTP service of a provider, and what a message needs there. Pure. docs/providers.md names the documentation. */
import { sesSmtpHostOf } from '../net/aws-hosts.ts';
import type { Credentials, ProviderKind } from '../store/providers.ts';
import type { Server } from './transmit.ts';

/** All of them offer STARTTLS there. */
const port = 587;

/** `testPort`: where a test has its server. */
export function smtpServerOf(credentials: Credentials, testPort?: number): Server {
  const { host, user, password } = serviceOf(credentials);
  return {
    ...{ host, port: testPort ?? port, isImplicitTls: false, security: 'verified' },
    login: { user, password },
  };
}

function serviceOf(credentials: Credentials): { host: string; user: string; password: string } {
  switch (credentials.kind) {
    case 'postmark': {
      const { serverToken } = credentials;
      return { host: 'smtp.postmarkapp.com', user: serverToken, password: serverToken };
    }
    case 'mailgun': {
      const { username: user, password, region } = credentials;
      return { host: region === 'eu' ? 'smtp.eu.mailgun.org' : 'smtp.mailgun.org', user, password };
    }
    case 'sendgrid':
      return { host: 'smtp.sendgrid.net', user: 'apikey', password: credentials.apiKey };
    case 'ses': {
      const { username: user, password, region } = credentials;
      return { host: sesSmtpHostOf(region), user, password };
    }
  }
}

/** Header fields to put in front of a message, with CRLF. */
export function headerFieldsOf(kind: ProviderKind, messageId: string): string {
  // Postmark reports by an id of its own, and repeats the metadata. It replaces the Message-ID unless it is asked to keep it.
  return kind === 'postmark' ? `X-PM-KeepID: true\r\nX-PM-Metadata-posthorn: ${messageId}\r\n` : '';
}
