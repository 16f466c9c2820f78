import { get, Problem } from "./api";
import { live, type Change } from "./live.svelte";

/**
 * Something that a page shows and that is read again when it changes.
 *
 * What is there stays while it is read again; only the last answer counts; and it is asked at most once in `gap` ms.
 */
export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  problem = $state.raw<Problem | null>(null);
  loading = $state.raw(false);

  #read: ((signal: AbortSignal) => Promise<T>) | null = null;
  #abort: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #last = 0;
  #gap: number;

  constructor(gap = 250) {
    this.#gap = gap;
  }

  /** Read it, from now on in this way. What another way has read is forgotten, unless it is `kept`. */
  async load(read: (signal: AbortSignal) => Promise<T>, options: { kept?: boolean } = {}): Promise<void> {
    this.#read = read;
    if (!options.kept) this.data = undefined;
    await this.again();
  }

  async again(): Promise<void> {
    const read = this.#read;
    if (!read) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    this.#last = performance.now();
    this.loading = true;
    try {
      const data = await read(abort.signal);
      if (abort.signal.aborted) return;
      this.data = data;
      this.problem = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.problem = error instanceof Problem ? error : new Problem(0, { detail: String(error), code: "page" });
      if (!(error instanceof Problem)) console.error(error);
      // A server that is away for a moment is asked again.
      if (this.problem.status === 0 || this.problem.status === 503) this.soon(3000);
    } finally {
      if (this.#abort === abort) {
        this.#abort = null;
        this.loading = false;
      }
    }
  }

  /** Read it again in a moment; several wishes are one. */
  soon(delay = 0): void {
    if (this.#timer !== undefined || document.hidden) return;
    const rest = this.#gap - (performance.now() - this.#last);
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        // A tab that is seen again reads everything.
        if (document.hidden) return;
        if (this.#abort) this.soon(this.#gap);
        else void this.again();
      },
      Math.max(delay, rest, 0),
    );
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#abort?.abort();
    this.#abort = null;
    this.#read = null;
  }
}

/** A resource of a component: read as `read` says, again when what it depends on changes, and when `when` says so. */
export function resource<T>(
  read: () => ((signal: AbortSignal) => Promise<T>) | null,
  when: (change: Change) => boolean = (change) => change.all || change.runs.size > 0,
  options: { gap?: number; kept?: boolean } = {},
): Resource<T> {
  const found = new Resource<T>(options.gap);
  $effect(() => {
    const how = read();
    if (how) void found.load(how, { kept: options.kept ?? false });
    else {
      found.stop();
      found.data = undefined;
    }
  });
  $effect(() => {
    const deaf = live.listen((change) => {
      if (when(change)) found.soon();
    });
    return () => {
      deaf();
      found.stop();
    };
  });
  return found;
}

/** All that is at a path of the API, read again at most once in `gap` ms. */
export const whole = <T>(path: string, gap = 1500, when?: (change: Change) => boolean): Resource<T> =>
  resource<T>(() => (signal) => get(path, {}, { signal }), when, { gap, kept: true });
