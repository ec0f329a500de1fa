/** `GET /me`: whose key this is, and whether it works. */
import { Me } from '../../contract/user.ts';
import type { App } from '../fastify.ts';

export function meRoutes(app: App): void {
  app.get(
    '/me',
    {
      config: { access: 'key' },
      schema: {
        tags: ['User'],
        summary: 'The user who owns the API key',
        response: { 200: Me },
      },
    },
    async (request) => ({ userId: request.ownerId }),
  );
}
