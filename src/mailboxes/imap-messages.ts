/** What the main thread and a thread of the IMAP client say to each other. Everything is a plain value that can be cloned. */
import type { TargetAddress } from '../net/egress.ts';
import type { MailServer } from '../net/mail-server.ts';
import type { FoundFolder } from '../store/mailbox-sync.ts';
import type { FolderState } from './decide.ts';
import type { ImapFailure } from './imap-failure.ts';

export type ImapLogin = { password: string } | { accessToken: string };

export interface ImapTimeouts {
  connectMs: number;
  greetingMs: number;
  silenceMs: number;
  /** From the connection to the end of the login, for a server that says something from time to time and never ends. */
  loginMs: number;
}

export interface OpenOptions extends Pick<MailServer, 'host' | 'port' | 'secure' | 'username'> {
  login: ImapLogin;
  /** Those that egress allowed. The thread connects to no other. */
  addresses: TargetAddress[];
  /** No login without TLS and a valid certificate. */
  isVerified: boolean;
  ca: string | undefined;
  timeouts: ImapTimeouts;
  maxMessageBytes: number;
}

/** What a message is known by. */
export interface KnownFacts {
  uid: number;
  /** The INTERNALDATE. Null: it cannot be read, or the server gave none. */
  receivedAt: Date | null;
  size: number;
  fingerprint: string;
  /** Of its Message-ID, if keys are wanted. */
  key: string | null;
}

export type UnreadFacts = Pick<KnownFacts, 'uid' | 'receivedAt' | 'size'>;

export interface SearchQuery {
  uid: string;
  since?: Date;
  seq?: string;
}

/** What a connection is asked for. A failure is a rejection with `ServerFailure`, or `ThreadFailure` if the thread ends. */
export interface ImapCommands {
  listFolders(): Promise<FoundFolder[]>;
  examine(path: string): Promise<FolderState>;
  readState(path: string): Promise<FolderState>;
  /** UIDs, lowest first. They have memory of their own. */
  search(query: SearchQuery): Promise<Uint32Array>;
  /** In any order, without those that were deleted meanwhile. `long`: the header must be read alone. */
  readHeaders(
    uids: readonly number[],
    options: { maxMessageBytes: number; wantsKeys: boolean },
  ): Promise<{ known: KnownFacts[]; long: UnreadFacts[] }>;
  /** Null: it was deleted meanwhile. */
  readLongHeader(facts: UnreadFacts, options: { wantsKeys: boolean }): Promise<KnownFacts | null>;
  /** Each has memory of its own. */
  readMessages(uids: readonly number[], bytes: number): Promise<{ uid: number; raw: Uint8Array }[]>;
  append(path: string, raw: Uint8Array): Promise<void>;
  logOut(): Promise<void>;
}

export type ImapCommand = keyof ImapCommands;
export type ImapAnswer<Name extends ImapCommand> = Awaited<ReturnType<ImapCommands[Name]>>;

/** `id`: of the connection. */
export type ToThread =
  | { kind: 'open'; id: number; options: OpenOptions }
  | { kind: 'ask'; id: number; ask: number; name: ImapCommand; args: unknown[] }
  | { kind: 'idle'; id: number }
  | { kind: 'close'; id: number }
  | { kind: 'ping' };

/** `total`: how many messages the open folder has; null: no folder is open. `costMs`: of the thread's time, since the connection was opened. */
export type FromThread =
  | { kind: 'opened'; id: number; costMs: number; hasIdle: boolean; hasGmailExtension: boolean }
  | { kind: 'answer'; id: number; costMs: number; ask: number; total: number | null; value: unknown }
  | { kind: 'failed'; id: number; costMs: number; ask: number; failure: ImapFailure }
  /** Said once until the connection is asked for something. */
  | { kind: 'news'; id: number }
  /** Also if it could not be opened, and after `close`. Nothing more comes of this connection. */
  | { kind: 'closed'; id: number; costMs: number; failure: ImapFailure }
  | { kind: 'pong' };
