/** What is said to a person for a moment: shown in a corner, and read out. */

export interface Notice {
  id: number;
  text: string;
  bad: boolean;
  href?: string | undefined;
  link?: string | undefined;
}

class Notices {
  shown = $state.raw<Notice[]>([]);
  /** For those who do not see the page. */
  said = $state.raw("");
}
export const notices = new Notices();
let next = 0, last = "";

/** Say what has changed on the page. */
export function announce(text: string): void {
  // What is said twice must differ to be read out twice.
  last = last === text ? `${text}\u00a0` : text;
  notices.said = last;
}

export function notify(text: string, more: { bad?: boolean; href?: string; link?: string } = {}): void {
  const id = ++next;
  notices.shown = [...notices.shown, { id, text, bad: more.bad ?? false, href: more.href, link: more.link }];
  announce(text);
  setTimeout(() => dismiss(id), more.bad ? 12_000 : 6000);
}

export function dismiss(id: number): void {
  notices.shown = notices.shown.filter((one) => one.id !== id);
}
