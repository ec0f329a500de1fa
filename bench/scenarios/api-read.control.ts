/** The control of api-read: fastify without schemas, hooks or authentication, with the query of `GET /identities`. */
import { fastify } from 'fastify';
import { listIdentities } from '../../src/store/identities.ts';
import { runControl } from '../control.ts';

const [ownerId = ''] = process.argv.slice(2);

await runControl(async (sql) => {
  const app = fastify();
  app.get('/identities', async () => {
    const { rows } = await listIdentities(sql, ownerId, {}, { limit: 1000, after: null });
    return rows;
  });
  return app.listen({ host: '127.0.0.1', port: 0 });
});
