/** A host that accepts no connection. */
import { once } from 'node:events';
import net from 'node:net';
import { after } from 'node:test';
import { Worker } from 'node:worker_threads';

/** A port whose queue of connections is full, and which nobody serves: the system drops what else comes. */
export async function startDeafServer(): Promise<number> {
  const worker = new Worker(
    `const { parentPort } = require('node:worker_threads');
     const server = require('node:net').createServer();
     server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
       parentPort.postMessage(server.address().port);
       Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
     });`,
    { eval: true },
  );
  const [port] = (await once(worker, 'message')) as [number];
  const queued = Array.from({ length: 8 }, () => net.connect(port, '127.0.0.1').on('error', () => {}));
  await Promise.race(queued.map((socket) => once(socket, 'connect')));
  after(async () => {
    for (const socket of queued) socket.destroy();
    await worker.terminate();
  });
  return port;
}
