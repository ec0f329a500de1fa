/** How the relay of the faults behaves, and what it reports. */

export interface Manner {
  /** False: nobody listens, and open connections are closed. */
  isThere: boolean;
  /** From the final dot to the reply: at most so long, and mostly much shorter. */
  answerMs: number;
  /** Replies 421 to every second command, and closes the connection. */
  isTired: boolean;
  /** One of so many messages gets no reply to its final dot until the connection is closed, so much later. 0: none. */
  hangsOneOf: number;
  hangMs: number;
  /** The text of the reply to the final dot has so many bytes. */
  replyBytes: number;
  /** These replies wait until a manner without their hold. */
  holds: readonly Hold[];
  /** The reply to the final dot of messages that waited there. */
  heldReply: string;
}

export const goodManner: Manner = {
  isThere: true,
  answerMs: 0,
  isTired: false,
  hangsOneOf: 0,
  hangMs: 0,
  replyBytes: 0,
  holds: [],
  heldReply: '250 2.0.0 Taken',
};

export interface Hold {
  /** The name in EHLO. */
  client: string;
  at: 'DATA' | '.';
  /** By the number in the recipient's address. */
  letters: 'odd' | 'even';
}

/** A message that the server took. */
export interface Taken {
  kind: 'taken';
  client: string;
  rcpt: string;
  subject: string;
  sha256: string;
  /** Milliseconds since 1970. */
  atMs: number;
}

/** A reply begins to wait. */
export interface Held {
  kind: 'held';
  hold: Hold;
}

/** The connection was lost after DATA and before the final dot. */
export interface Abandoned {
  kind: 'abandoned';
  client: string;
}
