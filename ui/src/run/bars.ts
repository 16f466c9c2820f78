/** What is drawn of an op, in pixels. */
import { span } from "../lib/time.svelte";
import { attempts, isInstant, type OpColumns } from "./ops";
import type { Scale } from "./scale";

export interface Bar {
  x: number;
  width: number;
  /** What it is: its look is a class of that name. */
  look: string;
  title: string;
}

const MOST = 40;

export function bars(ops: OpColumns, at: number, scale: Scale, now: number): Bar[] {
  const kind = ops.kind[at]!, status = ops.status[at]!;
  const end = ops.end[at] ?? now;
  const bar = (from: number, to: number, look: string, what: string): Bar => {
    const x = scale.x(from);
    return { x, width: Math.max(look.includes("moment") ? 3 : 2, scale.x(to) - x), look, title: `${what}: ${span(to - from)}` };
  };
  if (isInstant(kind)) return [bar(ops.start[at]!, ops.start[at]!, "moment", kind)];
  if (kind === "child") return [bar(ops.start[at]!, end, `child ${status}`, "child run")];
  if (kind !== "step") {
    const look = kind === "lock" ? "lock" : kind === "remote" ? "remote" : kind === "timer" ? "timer" : "wait";
    return [bar(ops.start[at]!, end, `${look} ${status}`, `waited for ${kind === "timer" ? "a moment" : `a ${kind}`}`)];
  }
  const tried = attempts(ops, at);
  const found: Bar[] = [];
  // Of very many attempts the last ones tell the most.
  const first = Math.max(0, tried.length - MOST);
  if (first) found.push(bar(tried[0]![0], tried[first]![0], "backoff", `${first} attempts`));
  for (let n = first; n < tried.length; n++) {
    const [from, to] = tried[n]!;
    const last = n === tried.length - 1;
    const lost = to === null && !last;
    const until = to ?? tried[n + 1]?.[0] ?? end;
    const look = lost ? "lost" : last && status !== "retrying" ? (ops.queue[at] ? `remote ${status}` : `work ${status}`) : "work failed";
    const what = lost ? `attempt ${n + 1} was cut off, and taken up again after` : tried.length > 1 ? `attempt ${n + 1}` : ops.queue[at] ? `in queue ${ops.queue[at]}` : "worked";
    found.push(bar(from, until, look, what));
    const again = tried[n + 1]?.[0];
    if (to !== null && again !== undefined) found.push(bar(to, again, "backoff", "backed off"));
    else if (to !== null && last && status === "retrying") found.push(bar(to, now, "backoff", "backs off"));
  }
  return found;
}

/** When steps ran: what an axis must not fold. */
export function busy(ops: OpColumns, now: number): [number, number][] {
  const found: [number, number][] = [];
  for (let at = 0; at < ops.length; at++) {
    const start = ops.start[at]!;
    if (ops.kind[at] === "step") for (const [from, to] of attempts(ops, at)) found.push([from, to ?? (ops.end[at] === null && !ops.tries.has(at) ? now : from)]);
    else {
      found.push([start, start]);
      const end = ops.end[at];
      if (end !== null && end !== undefined) found.push([end, end]);
    }
  }
  return found;
}

/** How many of these ops were under way over an axis, as an outline that an SVG path draws, 100 wide per 100 pixels. */
export function density(ops: OpColumns, members: number[], scale: Scale, now: number, height: number): { all: string; bad: string; most: number } {
  const size = 3, count = Math.max(1, Math.ceil(scale.width / size));
  const all = new Float64Array(count + 1), failed = new Float64Array(count + 1);
  for (const at of members) {
    if (isInstant(ops.kind[at]!)) continue;
    const from = Math.max(0, Math.min(count - 1, Math.floor(scale.x(ops.start[at]!) / size)));
    const to = Math.max(from, Math.min(count - 1, Math.floor(scale.x(ops.end[at] ?? now) / size)));
    all[from]! += 1;
    all[to + 1]! -= 1;
    if (ops.status[at] === "failed") failed[to]! += 1;
  }
  let sum = 0, most = 0;
  const heights = Array.from({ length: count }, (_, n) => {
    sum += all[n]!;
    most = Math.max(most, sum);
    return sum;
  });
  let path = "", bad = "";
  heights.forEach((n, i) => {
    if (n > 0) path += `M${i * size} ${height}v${-Math.max(2, (n / most) * height)}h${size}V${height}Z`;
    if (failed[i]! > 0) bad += `M${i * size} 0h${size}V${height}h${-size}Z`;
  });
  return { all: path, bad, most };
}
