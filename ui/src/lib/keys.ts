/** Shortcuts: a key, or one after another as in `g r`; `mod` is Ctrl, or Command on a Mac. None while a text is typed. */

export interface Shortcut {
  keys: string;
  what: string;
  does: () => void;
  when?: () => boolean;
}

class Keys {
  all: Shortcut[] = [];
  #first = "";
  #timer: ReturnType<typeof setTimeout> | undefined;

  add(shortcuts: Shortcut[]): () => void {
    this.all = [...this.all, ...shortcuts];
    return () => (this.all = this.all.filter((one) => !shortcuts.includes(one)));
  }

  press(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    const modified = event.metaKey || event.ctrlKey;
    if (event.defaultPrevented || event.altKey || event.isComposing) return;
    if (!modified && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) {
      // Out of what is typed, back to the keys.
      if (event.key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const key = modified ? `mod+${event.key.toLowerCase()}` : event.key;
    const found = this.#find(this.#first ? `${this.#first} ${key}` : key) ?? (this.#first ? this.#find(key) : undefined);
    this.#first = "";
    clearTimeout(this.#timer);
    if (found) {
      event.preventDefault();
      found.does();
    } else if (this.all.some((one) => one.keys.startsWith(`${key} `))) {
      this.#first = key;
      this.#timer = setTimeout(() => (this.#first = ""), 1200);
    }
  }

  /** The one that was added last: a page's own before those of all pages. */
  #find(keys: string): Shortcut | undefined {
    return this.all.findLast((one) => one.keys === keys && (one.when?.() ?? true));
  }
}

export const keys = new Keys();
