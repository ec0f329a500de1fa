/** How much a server may send. The main thread takes so much memory of the owner, and the thread ends the connection beyond it. */

/**
 * imapflow parses about 2 MB of a line in a second, but a set of numbers such as `1:2,4,6` in the square of its length: 64 KiB take
 * 0.3 s, and 420 KiB took 55 s. The thread does nothing else meanwhile.
 */
export const lineBytes = 64 * 1024;
/** What a server says at the login, about a folder, or while nothing is asked. */
export const shortBytes = 256 * 1024;
/** Until the next command. A response costs the thread about 0.1 ms, however short it is. Thousands of flags can change at once. */
export const maxResponses = 10_000;
/** At the login, before the server knows of any folder. */
export const loginResponses = 1000;
/** The names of ten thousand folders. */
export const foldersBytes = 2 * 1024 * 1024;
/** What imapflow makes of them takes much more memory than they have bytes. */
export const foldersMemory = 4 * foldersBytes;
/** The answer to a search. */
export const searchBytes = 2 * lineBytes;
/** So many messages of a folder are searched at once: their UIDs fit into a line. */
export const searchedAtOnce = 5000;
/** UIDs in the answer to a search. A short line can stand for millions, such as `1:4000000000`. More mail than was searched may have come. */
export const maxFound = 20_000;
/** So much of a header is read with those of other messages. What is longer is read alone: anyone can send a mail that is all header. */
export const usualHeaderBytes = 1024 * 1024;

/** What an answer with a message may have in all. Some servers only estimate the size that they tell. */
export function answerBytes(messageBytes: number): number {
  return messageBytes + Math.ceil(messageBytes / 8) + 1024 * 1024;
}
