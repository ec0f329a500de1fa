/** The fields of an SMTP account, for creating one and for changing one: a side to send, and a side to receive. */
import { type Signal, useSignal } from '@preact/signals';
import type { SmtpAccount } from '../contract.ts';
import type { MailService } from '../mail-services.ts';
import { CheckField, SelectField, TextField } from '../parts/form.tsx';

type Side = 'smtp' | 'imap';
type Stored = SmtpAccount['smtp'];
/** `same`: the login that is entered for sending. */
type Login = 'password' | 'oauth2' | 'same';

function useServerFields(stored: Stored | null, first: { port: number; login: Login }) {
  const host = useSignal(stored?.host ?? '');
  const port = useSignal(String(stored?.port ?? first.port));
  const username = useSignal(stored?.username ?? '');
  const login = useSignal<string>(stored ? (stored.oauth2 ? 'oauth2' : 'password') : first.login);
  const password = useSignal('');
  const clientId = useSignal(stored?.oauth2?.clientId ?? '');
  const clientSecret = useSignal('');
  const refreshToken = useSignal('');
  const tokenUrl = useSignal(stored?.oauth2?.tokenUrl ?? '');
  const scope = useSignal(stored?.oauth2?.scope ?? '');
  const oauth2 = { clientId, clientSecret, refreshToken, tokenUrl, scope };

  /** Secrets that are left empty stay as they are stored. */
  const readLogin = () => {
    if (login.value === 'password') {
      const isKept = password.value === '' && stored !== null && stored.oauth2 === null;
      return isKept ? {} : { password: password.value };
    }
    const wasStored = stored !== null && stored.oauth2 !== null;
    const secrets = [
      ...(wasStored && refreshToken.value === '' ? [] : [['refreshToken', refreshToken.value]]),
      ...(clientSecret.value === '' ? [] : [['clientSecret', clientSecret.value]]),
    ];
    const shown = { clientId: clientId.value, tokenUrl: tokenUrl.value, scope: scope.value || null };
    return { oauth2: { ...shown, ...Object.fromEntries(secrets) } };
  };
  const readServer = () => ({
    host: host.value.trim(),
    port: Number(port.value),
    username: username.value.trim(),
  });
  const offersSame = first.login === 'same';
  return { host, port, username, login, offersSame, password, oauth2, stored, readLogin, readServer };
}

export function useAccountFields(account?: SmtpAccount) {
  const label = useSignal(account?.label ?? '');
  const smtp = useServerFields(account?.smtp ?? null, { port: 465, login: 'password' });
  // Of a stored account nobody can read the login for sending, to use it for receiving too.
  const imap = useServerFields(account?.imap ?? null, { port: 993, login: account ? 'password' : 'same' });
  const isRead = useSignal(account ? account.imap !== null : true);
  /** What the service publishes; the user can change it. */
  const fill = ({ smtp: out, imap: into, oauth2 }: MailService) => {
    smtp.host.value = out.host;
    smtp.port.value = String(out.port);
    imap.host.value = into.host;
    imap.port.value = String(into.port);
    smtp.oauth2.tokenUrl.value = oauth2?.tokenUrl ?? '';
    smtp.oauth2.scope.value = oauth2?.scope ?? '';
  };
  const read = () => {
    const login = imap.login.value === 'same' ? smtp.readLogin() : imap.readLogin();
    return {
      label: label.value.trim(),
      smtp: { ...smtp.readServer(), ...smtp.readLogin() },
      imap: isRead.value ? { ...imap.readServer(), ...login } : null,
    };
  };
  return { label, smtp, imap, isRead, fill, read };
}

type ServerFields = ReturnType<typeof useServerFields>;

export function AccountFields({
  given,
  service,
}: {
  given: ReturnType<typeof useAccountFields>;
  service?: MailService | undefined;
}) {
  return (
    <>
      <fieldset class="part">
        <legend>Sending (SMTP)</legend>
        <ServerInputs side="smtp" fields={given.smtp} />
        <LoginInputs side="smtp" fields={given.smtp} service={service} />
      </fieldset>
      <CheckField label="Also receive: read the mailbox by IMAP" value={given.isRead} />
      {given.isRead.value && (
        <fieldset class="part">
          <legend>Receiving (IMAP)</legend>
          <ServerInputs side="imap" fields={given.imap} />
          <LoginInputs side="imap" fields={given.imap} />
        </fieldset>
      )}
    </>
  );
}

interface SideProps {
  side: Side;
  fields: ServerFields;
}

function ServerInputs({ side, fields }: SideProps) {
  return (
    <div class="pair">
      <TextField label="Host" name={`${side}/host`} value={fields.host} placeholder={`${side}.example.com`} />
      <TextField
        label="Port"
        name={`${side}/port`}
        value={fields.port}
        hint={`${side === 'smtp' ? 465 : 993} is TLS from the start, ${side === 'smtp' ? 587 : 143} is STARTTLS.`}
      />
      <TextField label="User name" name={`${side}/username`} value={fields.username} />
    </div>
  );
}

const logins: readonly (readonly [Login, string])[] = [
  ['password', 'Password or app password'],
  ['oauth2', 'OAuth2'],
];

function LoginInputs({ side, fields, service }: SideProps & { service?: MailService | undefined }) {
  const { login, offersSame, password, stored } = fields;
  const isNew = stored === null;
  const options = offersSame ? [['same', 'The same as for sending'] as const, ...logins] : logins;
  return (
    <>
      <div class="pair">
        <SelectField label="Login" name={`${side}/login`} value={login} options={options} />
        {login.value === 'password' && (
          <TextField
            label="Password"
            name={`${side}/password`}
            type="password"
            value={password}
            autocomplete="new-password"
            hint={isNew ? service?.password : 'Empty: the stored password is kept.'}
          />
        )}
      </div>
      {login.value === 'oauth2' && <OAuth2Inputs side={side} fields={fields} service={service} />}
    </>
  );
}

function OAuth2Inputs({ side, fields, service }: SideProps & { service?: MailService | undefined }) {
  const field = (name: keyof ServerFields['oauth2'], label: string, more: object = {}) => (
    <TextField
      label={label}
      name={`${side}/oauth2/${name}`}
      value={fields.oauth2[name] as Signal<string>}
      {...more}
    />
  );
  const kept = fields.stored?.oauth2 ? { hint: 'Empty: the stored value is kept.' } : {};
  const secret = { type: 'password', autocomplete: 'new-password', ...kept };
  return (
    <>
      <p class="hint">
        {service?.oauth2?.hint ??
          'Register an application at the service, and sign in once to get a refresh token. Posthorn renews access tokens by itself.'}
      </p>
      <div class="pair">
        {field('clientId', 'Client id')}
        {field('clientSecret', 'Client secret', { ...secret, hint: kept.hint ?? 'If the service gave one.' })}
        {field('refreshToken', 'Refresh token', secret)}
        {field('tokenUrl', 'Token URL', { type: 'url' })}
        {field('scope', 'Scope', { hint: 'If the service wants one.' })}
      </div>
    </>
  );
}
