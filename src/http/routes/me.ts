/** `GET /me`: shows a caller whether the API key works, and whose it is. */
import { Me } from '../../contract/user.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

export function meRoutes(app: App): void {
  app.get(
    '/me',
    withAccess('key', ['User'], { summary: 'Get the user of the API key', response: { 200: Me } }),
    async (request) => ({ userId: request.ownerId }),
  );
}
