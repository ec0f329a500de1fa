/** The control of send: the same messages over as many connections, by nodemailer's pooled transport, without a database. */
import nodemailer from 'nodemailer';
import { goodDomain, writeMessage } from '../sends.ts';

const [port = ''] = process.argv.slice(2);
const connections = 10;
const transport = nodemailer.createTransport({
  pool: true,
  host: '127.0.0.1',
  port: Number(port),
  ignoreTLS: true,
  maxConnections: connections,
  maxMessages: Number.POSITIVE_INFINITY,
});
const to = `inbox@${goodDomain}`;
const raw = Buffer.from(writeMessage(to));
const envelope = { from: 'bounces@sender.example', to: [to] };

process.on('message', async (count: number) => {
  let left = count;
  const began = performance.now();
  const repeat = async () => {
    while (left-- > 0) await transport.sendMail({ envelope, raw });
  };
  await Promise.all(Array.from({ length: connections }, repeat));
  process.send?.(count / ((performance.now() - began) / 1000));
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
