/** What a person has chosen, kept in the browser. Nothing of it is on the server. */

export interface View {
  name: string;
  query: string;
}

interface Chosen {
  theme: "auto" | "light" | "dark";
  /** `local`, or a zone such as `Europe/Berlin`. */
  zone: string;
  /** Whether times are shown as such, or by how long ago they were. */
  absolute: boolean;
  /** The columns of the list of runs; none: those of the start. */
  columns: string[];
  views: View[];
  /** Whether runs are counted: on a large store counting is what costs. */
  counts: boolean;
  foldIdle: boolean;
}
export type Theme = Chosen["theme"];

const NAME = "perdure";
const START: Chosen = { theme: "auto", zone: "local", absolute: false, columns: [], views: [], counts: true, foldIdle: true };

function stored(): Chosen {
  try {
    return { ...START, ...(JSON.parse(localStorage.getItem(NAME) ?? "{}") as Partial<Chosen>) };
  } catch {
    return START;
  }
}

let chosen = $state.raw(stored());

function show(): void {
  if (chosen.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen.theme;
}
show();
addEventListener("storage", () => {
  chosen = stored();
  show();
});

/** Read like an object, and written like one. */
export const prefs = new Proxy(START, {
  get: (_, name: keyof Chosen) => chosen[name],
  set: (_, name: keyof Chosen, value) => {
    chosen = { ...chosen, [name]: value };
    show();
    try {
      localStorage.setItem(NAME, JSON.stringify(chosen));
    } catch {
      // Private windows may have no room.
    }
    return true;
  },
});
