/** The browsers that are signed in. Any of them can be signed out from here. */
import { usePage } from '../page.ts';
import { DangerButton } from '../parts/form.tsx';
import { ListTable, useListed } from '../parts/list.tsx';
import { Badge, When } from '../parts/show.tsx';
import { describeBrowser } from '../words.ts';

export function Sessions() {
  const { api, sessionId } = usePage();
  const listing = useListed((cursor) => api.listSessions({ cursor }));
  const end = async (id: string) => {
    await api.endSession(id);
    await listing.reload();
  };
  return (
    <section class="stack" aria-labelledby="sessions">
      <h2 id="sessions">Signed-in browsers</h2>
      <p class="soft">A browser is signed out after 12 hours without use, and after 7 days at the latest.</p>
      <ListTable
        listing={listing}
        head={['Browser', 'Signed in with', 'Since', 'Last used', '']}
        empty="No browser is signed in."
      >
        {({ id, userAgent, apiKeyId, scope, createdAt, lastUsedAt }) => (
          <tr key={id}>
            <td title={userAgent ?? ''}>{describeBrowser(userAgent)}</td>
            <td>
              {apiKeyId ? 'An API key' : 'A sign-in link'} <Badge state={scope} />
            </td>
            <td>
              <When at={createdAt} />
            </td>
            <td>
              <When at={lastUsedAt} />
            </td>
            <td>
              <div class="actions">
                {id === sessionId ? (
                  <span class="soft">This browser</span>
                ) : (
                  <DangerButton
                    label="Sign out"
                    question={`Sign out ${describeBrowser(userAgent)}?`}
                    act={() => end(id)}
                  />
                )}
              </div>
            </td>
          </tr>
        )}
      </ListTable>
    </section>
  );
}
