/** What each kind of provider needs, and where to enter its URLs: the short form of docs/providers.md. */
import type { Provider } from './contract.ts';

export interface CredentialField {
  /** Below `credentials` in the body of the request. */
  name: string;
  label: string;
  hint: string;
  isSecret?: true;
  isOptional?: true;
  placeholder?: string;
  options?: readonly (readonly [string, string])[];
}

interface ProviderKind {
  name: string;
  fields: readonly CredentialField[];
  inbound: string;
  events: string;
}

export const providerKinds: Record<Provider['kind'], ProviderKind> = {
  postmark: {
    name: 'Postmark',
    fields: [
      {
        name: 'serverToken',
        label: 'Server token',
        hint: 'Servers → your server → API Tokens',
        isSecret: true,
      },
      {
        name: 'basicAuth/username',
        label: 'User name for basic auth',
        hint: 'If you want it: any value of yours. Enter the same in both URLs at Postmark.',
        isOptional: true,
      },
      {
        name: 'basicAuth/password',
        label: 'Password for basic auth',
        hint: 'Together with the user name.',
        isSecret: true,
        isOptional: true,
      },
    ],
    inbound:
      'In the settings of the inbound stream, enter it as the webhook, and tick “Include raw email content in JSON payload”.',
    events:
      'In the settings of the outbound stream, add a webhook with it for Delivery, Bounce and Spam Complaint.',
  },
  mailgun: {
    name: 'Mailgun',
    fields: [
      {
        name: 'username',
        label: 'SMTP user name',
        hint: 'Sending → Domain settings → SMTP credentials',
        placeholder: 'postmaster@mg.example.com',
      },
      { name: 'password', label: 'SMTP password', hint: 'The same place.', isSecret: true },
      {
        name: 'signingKey',
        label: 'Webhook signing key',
        hint: 'Settings → API security → HTTP webhook signing key',
        isSecret: true,
      },
      {
        name: 'region',
        label: 'Region',
        hint: 'Where the domain was created.',
        options: [
          ['us', 'us'],
          ['eu', 'eu'],
        ],
      },
    ],
    inbound: 'Create a route with the action forward("…") and this URL.',
    events: 'Sending → Webhooks: enter it for Delivered Messages, Permanent Failure and Spam Complaints.',
  },
  sendgrid: {
    name: 'SendGrid',
    fields: [
      {
        name: 'apiKey',
        label: 'API key',
        hint: 'Settings → API Keys; the permission Mail Send is enough.',
        isSecret: true,
      },
      {
        name: 'verificationKey',
        label: 'Verification key',
        hint: 'Settings → Mail Settings → Event Webhook: the key that appears when Signed Event Webhook is on.',
      },
      {
        name: 'inboundVerificationKey',
        label: 'Verification key of Inbound Parse',
        hint: 'The public_key of its security policy, if it is another key.',
        isOptional: true,
      },
    ],
    inbound:
      'Settings → Inbound Parse: enter it as the destination, check “POST the raw, full MIME message”, and attach a security policy with a signature.',
    events:
      'Settings → Mail Settings → Event Webhook: enter it, choose Delivered, Bounced, Dropped and Spam Reports, and turn on Signed Event Webhook.',
  },
  ses: {
    name: 'Amazon SES',
    fields: [
      {
        name: 'username',
        label: 'SMTP user name',
        hint: 'SES → SMTP settings → Create SMTP credentials',
      },
      {
        name: 'password',
        label: 'SMTP password',
        hint: 'The same place; not the keys of an IAM user.',
        isSecret: true,
      },
      { name: 'region', label: 'Region', hint: 'Of SES and of the topic.', placeholder: 'us-east-1' },
      {
        name: 'topicArn',
        label: 'ARN of the SNS topic',
        hint: 'A standard topic in the same region.',
        placeholder: 'arn:aws:sns:us-east-1:123456789012:mail',
      },
    ],
    inbound:
      'Subscribe it to the topic with the protocol HTTPS, without raw message delivery. Then SES → Email receiving: a receipt rule that publishes to the topic, encoding Base64.',
    events:
      'Not needed while the other URL is subscribed: both take mail and reports. In SES, choose the topic for bounce, complaint and delivery, with original headers.',
  },
};
