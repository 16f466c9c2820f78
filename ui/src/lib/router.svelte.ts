/** Where the page is: a path below the mount, and a query. All that a view depends on is in its address. */

const mount = new URL(document.baseURI).pathname;

function segments(): string[] {
  const path = location.pathname.startsWith(mount) ? location.pathname.slice(mount.length) : "";
  return path.split("/").filter(Boolean).map((one) => {
    try {
      return decodeURIComponent(one);
    } catch {
      return one;
    }
  });
}

class Place {
  path = $state.raw<string[]>(segments());
  query = $state.raw(new URLSearchParams(location.search));

  constructor() {
    addEventListener("popstate", () => this.read());
    document.addEventListener("click", (event) => this.#follow(event));
  }

  read(): void {
    this.path = segments();
    this.query = new URLSearchParams(location.search);
  }

  /** Go to an address relative to the mount. */
  go(href: string, options: { replace?: boolean } = {}): void {
    const url = new URL(href, document.baseURI);
    if (url.href !== location.href) history[options.replace ? "replaceState" : "pushState"](null, "", url);
    this.read();
  }

  /** The address of here with another query: what is null or empty goes. */
  with(changes: Record<string, string | string[] | null | undefined>): string {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      query.delete(name);
      for (const one of Array.isArray(value) ? value : [value]) if (one) query.append(name, one);
    }
    const text = query.toString();
    return this.path.map(encodeURIComponent).join("/") + (text ? `?${text}` : "") || ".";
  }

  set(changes: Record<string, string | string[] | null | undefined>, options: { replace?: boolean } = {}): void {
    this.go(this.with(changes), options);
  }

  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || !link.href) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || !url.pathname.startsWith(mount) || url.pathname.startsWith(`${mount}api/`)) return;
    event.preventDefault();
    this.go(url.href);
    // As after a load: the new page begins at its top.
    if (!link.closest("[data-stay]")) document.querySelector("main")?.scrollTo(0, 0);
  }
}

export const place = new Place();

/** An address with a query; what is empty is left out. */
export function link(path: string, values: Record<string, string | null | undefined | false>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
  const text = query.toString();
  return path + (text ? `?${text}` : "") || ".";
}

/** The address of a run's page. A child is a run of its root's journal, by its op path. */
export function runAddress(run_id: string, more: Record<string, string | null | undefined> = {}): string {
  const [root, ...path] = run_id.split("/");
  return link(`runs/${encodeURIComponent(root ?? "")}`, { child: path.join("/"), ...more });
}

/** A text with slashes as a part of an address: the slashes stay. */
export const enc = (text: string): string => text.split("/").map(encodeURIComponent).join("/");
