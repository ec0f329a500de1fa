/**
 * The servers of well-known mail services, and what they accept as a login. The hosts were compared with Thunderbird's database of
 * providers (thunderbird/autoconfig, ispdb/) where it has the service; the others are unverified.
 */

interface Server {
  host: string;
  port: number;
}

export interface MailService {
  name: string;
  /** Addresses of these domains are at this service. Empty: customers have domains of their own. */
  domains: readonly string[];
  smtp: Server;
  imap: Server;
  /** What to enter as the password. */
  password: string;
  oauth2?: { tokenUrl: string; scope: string; hint: string };
  /** The user name for IMAP is the part of the address before the @. */
  hasShortImapName?: true;
}

const own = 'The password of the mailbox.';
const app = (where: string) =>
  `An app password, not the password of the account. Create one at ${where}, with two-step verification on.`;
const tls = (smtp: string, imap: string) => ({
  smtp: { host: smtp, port: 465 },
  imap: { host: imap, port: 993 },
});
const microsoft = (tenant: string) => ({
  tokenUrl: `https://login.microsoftonline.com/${tenant}/oauth2/v2.0/token`,
  scope:
    'https://outlook.office.com/IMAP.AccessAsUser.All https://outlook.office.com/SMTP.Send offline_access',
  hint: 'Register an application in Microsoft Entra with the permissions IMAP.AccessAsUser.All, SMTP.Send and offline_access, and sign in once to get a refresh token.',
});

export const mailServices: readonly MailService[] = [
  {
    name: 'Gmail, Google Workspace',
    domains: ['gmail.com', 'googlemail.com'],
    ...tls('smtp.gmail.com', 'imap.gmail.com'),
    password: app('myaccount.google.com/apppasswords'),
    oauth2: {
      tokenUrl: 'https://oauth2.googleapis.com/token',
      scope: 'https://mail.google.com/',
      hint: 'Create an OAuth client in the Google Cloud console with the scope https://mail.google.com/, and sign in once to get a refresh token.',
    },
  },
  {
    name: 'Outlook.com',
    domains: ['outlook.com', 'hotmail.com', 'live.com', 'msn.com'],
    smtp: { host: 'smtp-mail.outlook.com', port: 587 },
    imap: { host: 'outlook.office365.com', port: 993 },
    password: 'Microsoft accepts no passwords here. Choose OAuth2.',
    oauth2: microsoft('consumers'),
  },
  {
    name: 'Microsoft 365',
    domains: [],
    smtp: { host: 'smtp.office365.com', port: 587 },
    imap: { host: 'outlook.office365.com', port: 993 },
    password: 'Microsoft accepts no passwords for reading a mailbox. Choose OAuth2.',
    oauth2: microsoft('organizations'),
  },
  {
    name: 'Fastmail',
    domains: ['fastmail.com', 'fastmail.fm'],
    ...tls('smtp.fastmail.com', 'imap.fastmail.com'),
    password: 'An app password: Settings → Privacy & Security → Manage app passwords.',
  },
  {
    name: 'iCloud Mail',
    domains: ['icloud.com', 'me.com', 'mac.com'],
    smtp: { host: 'smtp.mail.me.com', port: 587 },
    imap: { host: 'imap.mail.me.com', port: 993 },
    password: app('account.apple.com, under App-Specific Passwords'),
    hasShortImapName: true,
  },
  {
    name: 'Yahoo Mail',
    domains: [
      ...['yahoo.com', 'yahoo.co.uk', 'yahoo.de', 'yahoo.fr', 'yahoo.es', 'yahoo.it', 'yahoo.ca'],
      ...['ymail.com', 'rocketmail.com'],
    ],
    ...tls('smtp.mail.yahoo.com', 'imap.mail.yahoo.com'),
    password: 'An app password: Account info → Security → Generate app password.',
  },
  {
    name: 'AOL Mail',
    domains: ['aol.com'],
    ...tls('smtp.aol.com', 'imap.aol.com'),
    password: 'An app password: Account info → Security → Generate app password.',
  },
  {
    name: 'mailbox.org',
    domains: ['mailbox.org'],
    ...tls('smtp.mailbox.org', 'imap.mailbox.org'),
    password: 'The password of the account, or an app password if two-factor login is on.',
  },
  {
    name: 'Posteo',
    domains: ['posteo.de', 'posteo.net'],
    ...tls('posteo.de', 'posteo.de'),
    password: 'The password of the account.',
  },
  {
    name: 'GMX',
    domains: ['gmx.net', 'gmx.de', 'gmx.at', 'gmx.ch'],
    ...tls('mail.gmx.net', 'imap.gmx.net'),
    password: 'First allow POP3 and IMAP in the settings of GMX. With two-factor login: an app password.',
  },
  {
    name: 'WEB.DE',
    domains: ['web.de'],
    smtp: { host: 'smtp.web.de', port: 587 },
    imap: { host: 'imap.web.de', port: 993 },
    password: 'First allow POP3 and IMAP in the settings of WEB.DE. With two-factor login: an app password.',
  },
  {
    name: 'Zoho Mail',
    domains: ['zoho.com', 'zohomail.com'],
    ...tls('smtp.zoho.com', 'imap.zoho.com'),
    password: 'With two-factor login: an app password. IMAP must be on in the settings of Zoho Mail.',
  },
  { name: 'IONOS', domains: [], ...tls('smtp.ionos.com', 'imap.ionos.com'), password: own },
  { name: 'OVHcloud', domains: [], ...tls('ssl0.ovh.net', 'ssl0.ovh.net'), password: own },
  {
    name: 'Gandi',
    domains: [],
    smtp: { host: 'mail.gandi.net', port: 587 },
    imap: { host: 'mail.gandi.net', port: 993 },
    password: own,
  },
  { name: 'STRATO', domains: [], ...tls('smtp.strato.de', 'imap.strato.de'), password: own },
  { name: 'Hostinger', domains: [], ...tls('smtp.hostinger.com', 'imap.hostinger.com'), password: own },
  {
    name: 'Infomaniak',
    domains: ['ik.me', 'ikmail.com', 'etik.com'],
    ...tls('mail.infomaniak.com', 'mail.infomaniak.com'),
    password: own,
  },
];

export function findMailService(address: string): MailService | undefined {
  const domain = address.slice(address.lastIndexOf('@') + 1).toLowerCase();
  return mailServices.find(({ domains }) => domains.includes(domain));
}
