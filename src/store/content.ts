/**
 * The content of a message as it is stored: the raw bytes, and then the message as JSON, compressed together. Together, because
 * the JSON repeats most of the raw bytes: it adds a fifth to what they take alone, and costs no second compression.
 * Raw bytes that are large, or that several messages share, are stored in rows of their own (`raw_chunks`); the content is then
 * the JSON alone.
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdCompressSync, zstdDecompressSync } from 'node:zlib';

/** Larger raw bytes have rows of their own, so that reading the JSON of a large message does not read all of it. */
export const maxPackedRawBytes = 64 * 1024;

/** Compressing more would keep everything else in this process waiting; less costs less than its way to another thread. */
const maxSyncBytes = 128 * 1024;

/** Higher levels take a third more time for two percent fewer bytes. */
const options = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };
const compressApart = promisify(zstdCompress);

export async function compress(bytes: Buffer): Promise<Buffer> {
  return bytes.length <= maxSyncBytes ? zstdCompressSync(bytes, options) : compressApart(bytes, options);
}

/** A millisecond for a MiB. */
export function decompress(bytes: Buffer): Buffer {
  return zstdDecompressSync(bytes);
}

/** `raw`: null if the raw bytes have rows of their own. `data`: JSON text. */
export function packContent(raw: Buffer | null, data: string): Promise<Buffer> {
  const json = Buffer.from(data);
  return compress(raw ? Buffer.concat([raw, json]) : json);
}

interface PackedContent {
  /** Base64, which costs less than two thirds of reading hex. */
  content: string;
  /** Of the raw bytes. */
  size: number;
  /** Whether the content has the raw bytes. */
  hasRaw: boolean;
}

export function unpackContent({ content, size, hasRaw }: PackedContent): {
  raw: Buffer | null;
  data: string;
} {
  const bytes = decompress(Buffer.from(content, 'base64'));
  return hasRaw
    ? { raw: bytes.subarray(0, size), data: bytes.toString('utf8', size) }
    : { raw: null, data: bytes.toString() };
}
