/** The chapters of the API description, in the order of `/docs`. Each operation is in one. */
export const tags = [
  {
    name: 'Identities',
    description: 'Email addresses and domains that you receive mail for and send mail from.',
  },
  { name: 'Messages', description: 'Mail that came in and mail that goes out.' },
  { name: 'Webhooks', description: 'The URLs of your backend that get the events, and their secrets.' },
  {
    name: 'Deliveries',
    description: 'What became of each event at each webhook; send an event again, or all events of a time.',
  },
  { name: 'Events', description: 'What happened to your mail. Webhooks and streams get the same events.' },
  { name: 'Suppressions', description: 'Addresses that your mail no longer goes to.' },
  {
    name: 'SMTP accounts',
    description:
      'Logins at mail servers elsewhere: your mail leaves through them, and mailboxes there are read by IMAP.',
  },
  {
    name: 'Providers',
    description:
      'Mail services (Amazon SES, Mailgun, Postmark, SendGrid) that your mail leaves through and comes in by.',
  },
  { name: 'Statistics', description: 'How much mail came in and went out.' },
  { name: 'API keys', description: 'The keys of your programs.' },
  { name: 'Sessions', description: 'Browsers that signed in to the dashboard.' },
  { name: 'User', description: 'Who the API key belongs to.' },
  { name: 'Operator', description: 'Users and their first keys, for who runs this installation.' },
  { name: 'Operation', description: 'Health and metrics, for who runs this installation.' },
  { name: 'Documentation', description: 'This description.' },
] as const;
