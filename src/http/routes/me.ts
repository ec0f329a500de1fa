/** `GET /me`: shows a caller whether the API key works, and whose it is. */
import { Me } from '../../contract/user.ts';
import { keyScopes } from '../../store/api-keys.ts';
import type { App } from '../fastify.ts';

export function meRoutes(app: App): void {
  app.get(
    '/me',
    {
      config: { access: 'key', scopes: keyScopes },
      schema: { tags: ['User'], summary: 'Get the user of the API key', response: { 200: Me } },
    },
    async (request) => ({ userId: request.ownerId }),
  );
}
