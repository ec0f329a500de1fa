/** A network between a test and PostgreSQL that fails when the test says so. */
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

/** Passes bytes on, until it is told otherwise. */
export async function startNetwork(t: TestContext, databaseUrl: string) {
  const target = new URL(databaseUrl);
  const pairs: [net.Socket, net.Socket][] = [];
  let cutAt = { question: '', answer: '' };
  let lastAnswer = '';
  let hold: { question: string; reached(): void; ended: Promise<void> } | undefined;
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname);
    pairs.push([client, upstream]);
    for (const socket of [client, upstream]) socket.on('error', () => {}).on('close', () => cut());
    const cut = () => [client, upstream].forEach((socket) => void socket.destroy());
    client.on('data', async (bytes) => {
      if (has(bytes, cutAt.question)) return cut();
      if (hold && bytes.includes(hold.question)) {
        const { reached, ended } = hold;
        hold = undefined;
        reached();
        await ended;
      }
      upstream.write(bytes);
    });
    upstream.on('data', (bytes) => {
      client.write(bytes, () => has(bytes, cutAt.answer) && cut());
      if (lastAnswer === '' || !bytes.includes(lastAnswer)) return;
      lastAnswer = '';
      for (const socket of [client, upstream]) socket.removeAllListeners('data').pause();
    });
  });
  const has = (bytes: Buffer, text: string) => {
    const found = text !== '' && bytes.includes(text);
    if (found) cutAt = { question: '', answer: '' };
    return found;
  };
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.after(() => {
    server.close();
    for (const socket of pairs.flat()) socket.destroy();
  });
  return {
    url: (hosts: number) => databaseUrl.replace(target.host, Array(hosts).fill(host).join(',')),
    countOpen: () => pairs.filter(([client]) => !client.destroyed).length,
    /** The connections it has by now. New ones work. */
    fallSilent() {
      for (const [client, upstream] of pairs.splice(0)) {
        for (const socket of [client, upstream]) socket.removeAllListeners('data').resume();
        upstream.removeAllListeners('close').destroy();
      }
    },
    /** The connection that gets an answer with that in it; not even its end is noticed. */
    fallSilentAfter(answer: string) {
      lastAnswer = answer;
    },
    /** When a question or an answer with that in it comes along, once. */
    cutAt(text: Partial<typeof cutAt>) {
      cutAt = { ...cutAt, ...text };
    },
    /** Keeps back the next question with that in it. */
    holdAt(question: string) {
      const [reached, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
      hold = { question, reached: reached.resolve, ended: ended.promise };
      t.after(() => ended.resolve());
      return { reached: reached.promise, release: () => ended.resolve() };
    },
  };
}
