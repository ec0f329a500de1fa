/** A mail server of a user with the login, which is never shown or logged. */
interface OAuth2 {
  clientId: string;
  clientSecret: string | null;
  refreshToken: string;
  tokenUrl: string;
  scope: string | null;
}

export interface MailServer {
  /** A name, or an IP address without brackets. */
  host: string;
  port: number;
  /** TLS from the start. */
  secure: boolean;
  username: string;
  login: { password: string } | { oauth2: OAuth2 };
}
