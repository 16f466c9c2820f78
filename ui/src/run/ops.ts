/** The ops of a run, in columns, as they come: a page at a time, and then what has changed. */
import type { Ops } from "../lib/types";

type Column = "path" | "kind" | "status" | "start" | "end" | "attempts" | "source" | "group" | "queue" | "seq";
const COLUMNS: Column[] = ["path", "kind", "status", "start", "end", "attempts", "source", "group", "queue", "seq"];

export class OpColumns {
  number: number[] = [];
  path: string[] = [];
  kind: string[] = [];
  status: string[] = [];
  start: number[] = [];
  end: (number | null)[] = [];
  attempts: number[] = [];
  source: string[] = [];
  group: string[] = [];
  queue: string[] = [];
  seq: number[] = [];
  /** When each was due; null for what has no time. */
  due: (number | null)[] = [];
  tries = new Map<number, (number | null)[]>();
  owned: [number, number | null, string, number][] = [];
  held: [number, number | null, string][] = [];
  began = 0;
  /** Before this it was not to begin. */
  notBefore: number | null = null;
  ended: number | null = null;
  nextSeq = 0;
  /** Where the next page of those that were there at first begins; null when all have been read. */
  rest: number | null = 0;
  #at = new Map<number, number>();
  #byPath = new Map<string, number>();

  get length(): number {
    return this.path.length;
  }

  find(path: string): number | undefined {
    return this.#byPath.get(path);
  }

  /** Take in a page, or what has changed since. */
  merge(page: Ops, changed: boolean): void {
    page.number.forEach((number, from) => {
      let to = this.#at.get(number);
      if (to === undefined) {
        to = this.path.length;
        this.#at.set(number, to);
        this.number.push(number);
        this.#byPath.set(page.path[from]!, to);
      }
      for (const name of COLUMNS) (this[name] as unknown[])[to] = page[name][from];
      this.due[to] = page.due[from] ?? null;
      const tries = page.tries[String(number)];
      if (tries) this.tries.set(to, tries);
    });
    this.owned = page.owned as OpColumns["owned"];
    this.held = page.held as OpColumns["held"];
    this.began = page.began;
    this.notBefore = page.not_before;
    this.ended = page.ended;
    if (changed) this.nextSeq = page.next_seq;
    else {
      // The pages of a run that goes on are of different moments: what came in between is asked for again.
      this.nextSeq = this.nextSeq ? Math.min(this.nextSeq, page.next_seq) : page.next_seq;
      this.rest = page.next;
    }
  }
}

/** When a step was tried: `[start, end]` of each attempt; the end of one whose process died is null. */
export function attempts(ops: OpColumns, at: number): [number, number | null][] {
  const tries = ops.tries.get(at);
  if (!tries) return [[ops.start[at]!, ops.end[at]!]];
  const found: [number, number | null][] = [];
  for (let n = 0; n < tries.length; n += 2) found.push([tries[n]!, tries[n + 1] ?? null]);
  return found;
}

export const isInstant = (kind: string): boolean => !["step", "timer", "signal", "approval", "lock", "child", "remote", "interrupt"].includes(kind);
export const opName = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
