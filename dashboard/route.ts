/** The path of the page: which view is shown. Links change it without loading the page again. */
import { useEffect, useState } from 'preact/hooks';

/** The folder of this script is `/app/`, under whatever base path the operator set. */
export const appBase = new URL('.', import.meta.url).pathname;
/** Where the API is, with a slash at the end. */
export const apiBase = new URL('..', import.meta.url).href;

/** What the API reference says about verifying signatures. */
export const verifyingDocs = `${apiBase}docs#description/verifying-signatures`;

export function hrefOf(path: string): string {
  return `${appBase}${path}`;
}

export function navigate(path: string): void {
  history.pushState(null, '', hrefOf(path));
  dispatchEvent(new PopStateEvent('popstate'));
  scrollTo(0, 0);
}

/** Keeps what the address bar says up to date: links and the buttons of the browser change it. */
function useLocation(read: () => string): string {
  const [value, setValue] = useState(read);
  useEffect(() => {
    const update = () => setValue(read());
    addEventListener('popstate', update);
    return () => removeEventListener('popstate', update);
  }, []);
  return value;
}

/** A parameter of the address, or an empty text. */
export function useQuery(name: string): string {
  return new URLSearchParams(useLocation(() => location.search)).get(name) ?? '';
}

/** The parts of the path after `/app/`, such as `['messages', '<id>']`. Empty on the first page. */
export function usePath(): string[] {
  const path = useLocation(() => location.pathname);
  const rest = path.startsWith(appBase) ? path.slice(appBase.length) : '';
  return rest.split('/').filter(Boolean);
}
