/** Checks that an installed service serves its dashboard: the page, and the script that the page names. */
export async function requireDashboard(url: string): Promise<string> {
  const page = await (await fetch(`${url}/`)).text();
  const script = /<script type="module" src="([^"]+)"/.exec(page)?.[1];
  if (!script) throw new Error(`GET ${url}/ is not the dashboard:\n${page}`);
  const { status } = await fetch(new URL(script, url));
  if (status !== 200) throw new Error(`GET ${script} responds ${status} instead of 200`);
  return `GET / names ${script}: ${status}`;
}
