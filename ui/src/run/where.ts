/**
 * Where the time went: what a run did at each moment, from its ops alone.
 *
 * Of several things at once the first of this order counts: work, back-off, a lock, a remote queue, a wait. A run that could
 * continue and has no owner lacks a worker; what was paused or parked is that.
 */
import { attempts, type OpColumns } from "./ops";

export const KINDS = ["worked", "backed off", "locked", "remote", "waited", "queued", "paused", "parked", "no worker", "between"] as const;
export type Kind = (typeof KINDS)[number];
export const MEANING: Record<Kind, string> = {
  worked: "a step was at work",
  "backed off": "a step had failed, and its next attempt was not due",
  locked: "it waited for a lock",
  remote: "a step waited or worked in a queue",
  waited: "it waited for a moment, a signal or a person",
  queued: "it waited for its turn to begin",
  paused: "it was paused",
  parked: "it was parked",
  "no worker": "no orchestrator took it up, or its owner had died",
  between: "its owner was busy with other things, or between two steps",
};

export interface Part {
  kind: Kind;
  from: number;
  to: number;
}

type Edge = [at: number, kind: number, by: 1 | -1];
const WORK = 0, BACKOFF = 1, LOCK = 2, REMOTE = 3, WAIT = 4, OWNED = 5, PAUSED = 6, PARKED = 7, LATE = 8;

export function where(ops: OpColumns, now: number, created: number, queued: boolean): Part[] {
  const end = ops.ended ?? now;
  const edges: Edge[] = [];
  const add = (kind: number, from: number, to: number | null) => {
    if ((to ?? end) > from) edges.push([from, kind, 1], [Math.min(to ?? end, end), kind, -1]);
  };
  // An owner that died has said nothing of it: it was there at least until its last event.
  const moments = ops.owned.map(([from]) => from);
  const lastSign = (from: number, to: number): number => {
    let last = from;
    for (let at = 0; at < ops.length; at++) {
      for (const [began, ended] of attempts(ops, at)) {
        if (began < to && began > last) last = began;
        if (ended !== null && ended < to && ended > last) last = ended;
      }
    }
    return last;
  };
  ops.owned.forEach(([from, to], n) => {
    const taken = moments[n + 1];
    add(OWNED, from, to !== null && taken !== undefined && to === taken ? lastSign(from, to) : to);
  });
  const silent = (began: number): number | null => {
    // Where an attempt without an end was cut off: at the last sign of the owner of then.
    const n = ops.owned.findLastIndex(([from]) => from <= began);
    const owned = ops.owned[n];
    return owned && owned[1] !== null ? lastSign(owned[0], owned[1]) : null;
  };
  for (let at = 0; at < ops.length; at++) {
    const kind = ops.kind[at]!, start = ops.start[at]!, stop = ops.end[at] ?? null;
    if (kind === "step") {
      const tried = attempts(ops, at);
      tried.forEach(([from, to], n) => {
        const again = tried[n + 1]?.[0];
        const until = to ?? (again !== undefined ? (silent(from) ?? again) : stop);
        add(ops.queue[at] ? REMOTE : WORK, from, until);
        if (to !== null && again !== undefined) add(BACKOFF, to, again);
        else if (to !== null && n === tried.length - 1 && ops.status[at] === "retrying") add(BACKOFF, to, null);
      });
    } else if (kind === "lock") add(LOCK, start, stop);
    else if (kind === "remote") add(REMOTE, start, stop);
    else if (kind === "timer" || kind === "signal" || kind === "approval" || kind === "interrupt") {
      const due = ops.due[at] ?? null;
      // What was due and not taken up waits for a worker.
      if (due !== null && due < (stop ?? end) && (stop === null || ops.status[at] !== "succeeded" || kind === "timer")) {
        add(WAIT, start, Math.max(start, due));
        add(LATE, Math.max(start, due), stop);
      } else add(WAIT, start, stop);
    }
  }
  for (const [from, to, what] of ops.held) add(what === "paused" ? PAUSED : PARKED, from, to);

  edges.sort((a, b) => a[0] - b[0]);
  const open = new Array<number>(9).fill(0);
  const parts: Part[] = [];
  const first = ops.owned[0]?.[0] ?? end;
  const push = (kind: Kind, from: number, to: number) => {
    if (to <= from) return;
    const last = parts.at(-1);
    if (last && last.kind === kind && from - last.to < 1e-9) last.to = to;
    else parts.push({ kind, from, to });
  };
  // The browser cuts a time off at the millisecond.
  if (first - created >= 0.001) {
    // Nobody is late before the moment that it was delayed to.
    const due = Math.min(Math.max(created, ops.notBefore ?? created), first, end);
    push("waited", created, due);
    push(queued || first - due < 1 ? "queued" : "no worker", due, Math.min(first, end));
  }
  let at = Math.min(first, end);
  const kindNow = (): Kind => {
    if (open[PAUSED]) return "paused";
    if (open[PARKED]) return "parked";
    if (open[WORK]) return "worked";
    if (open[BACKOFF]) return "backed off";
    if (open[LOCK]) return "locked";
    if (open[REMOTE]) return "remote";
    if (open[WAIT]) return "waited";
    if (!open[OWNED]) return "no worker";
    return "between";
  };
  for (let n = 0; n < edges.length; ) {
    const moment = edges[n]![0];
    if (moment > at) {
      push(kindNow(), at, Math.min(moment, end));
      at = moment;
    }
    for (; n < edges.length && edges[n]![0] === moment; n++) open[edges[n]![1]]! += edges[n]![2];
  }
  push(ops.ended === null || at < end ? kindNow() : "between", at, end);
  return parts;
}

/** Seconds of each kind, the longest first. */
export function sums(parts: Part[]): [Kind, number][] {
  const found = new Map<Kind, number>();
  for (const part of parts) found.set(part.kind, (found.get(part.kind) ?? 0) + part.to - part.from);
  return [...found].filter(([, length]) => length >= 0.0005).sort((a, b) => b[1] - a[1]);
}
