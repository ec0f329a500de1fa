/** Watchers of the event stream, in their own process: each counts the events that it gets. */
import http from 'node:http';

export type WatchQuestion =
  | { kind: 'open'; url: string; authorization: string; count: number }
  /** Answers when every watcher has so many events. */
  | { kind: 'wait'; events: number }
  | { kind: 'close' };

interface Watcher {
  events: number;
  request: http.ClientRequest;
}

const watchers: Watcher[] = [];
const agent = new http.Agent({ maxSockets: Number.POSITIVE_INFINITY });
let onEvent = () => {};

function open({ url, authorization }: { url: string; authorization: string }): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = http.get(url, { agent, headers: { authorization } }, (response) => {
      const watcher = { events: 0, request };
      watchers.push(watcher);
      response.setEncoding('latin1').on('data', (text: string) => {
        // A field can be cut in two, the line of its name hardly ever: an event is counted by its id.
        watcher.events += text.split('\nid: ').length - 1 + (text.startsWith('id: ') ? 1 : 0);
        onEvent();
      });
      response.once('data', () => resolve());
    });
    request.on('error', (error) =>
      watchers.some((one) => one.request === request) ? undefined : reject(error),
    );
  });
}

function wait(events: number): Promise<void> {
  return new Promise((resolve) => {
    onEvent = () => {
      if (watchers.every((watcher) => watcher.events >= events)) resolve();
    };
    onEvent();
  });
}

process.on('message', async (question: WatchQuestion) => {
  if (question.kind === 'open')
    await Promise.all(Array.from({ length: question.count }, () => open(question)));
  else if (question.kind === 'wait') await wait(question.events);
  else for (const { request } of watchers.splice(0)) request.destroy();
  process.send?.('done');
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
