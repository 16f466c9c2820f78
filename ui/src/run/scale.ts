/** Where moments stand on an axis. Long idle stretches are folded to a mark, so that a month of sleep hides no second of work. */

export interface Stretch {
  from: number;
  to: number;
  /** In pixels. */
  x: number;
  width: number;
  folded: boolean;
}

const FOLD = 44, LEAST = 2;

export class Scale {
  constructor(readonly stretches: Stretch[], readonly width: number) {}

  x(at: number): number {
    const stretches = this.stretches;
    let low = 0, high = stretches.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (stretches[middle]!.from <= at) low = middle;
      else high = middle - 1;
    }
    const one = stretches[low];
    if (!one) return 0;
    const part = one.to > one.from ? (at - one.from) / (one.to - one.from) : 0;
    return one.x + Math.min(1, Math.max(0, part)) * one.width;
  }

  /** The moment at a place. */
  at(x: number): number {
    const one = this.stretches.findLast((stretch) => stretch.x <= x) ?? this.stretches[0];
    if (!one) return 0;
    return one.from + Math.min(1, Math.max(0, (x - one.x) / (one.width || 1))) * (one.to - one.from);
  }
}

/** Busy times that overlap or touch, joined. */
export function joined(busy: [number, number][]): [number, number][] {
  const sorted = [...busy].sort((a, b) => a[0] - b[0]);
  const found: [number, number][] = [];
  for (const [from, to] of sorted) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

export function scale(from: number, to: number, busy: [number, number][], width: number, fold: boolean): Scale {
  if (to <= from) to = from + 0.001;
  const gaps: [number, number][] = [];
  if (fold) {
    let at = from, work = 0;
    for (const [began, ended] of joined(busy)) {
      if (ended < from || began > to) continue;
      if (began > at) gaps.push([at, Math.min(began, to)]);
      work += Math.min(ended, to) - Math.max(began, from);
      at = Math.max(at, ended);
    }
    if (at < to) gaps.push([at, to]);
    // A gap is folded when it would take more room than the work beside it.
    const short = gaps.filter(([a, b]) => b - a <= 1).reduce((sum, [a, b]) => sum + b - a, 0);
    const threshold = Math.max(1, (work + short) * 0.3);
    gaps.splice(0, gaps.length, ...gaps.filter(([a, b]) => b - a > threshold));
    // Where nothing but idle time would be left there is nothing to fold it for.
    if (gaps.reduce((rest, [a, b]) => rest - (b - a), to - from) < 0.001) gaps.length = 0;
  }
  const stretches: Stretch[] = [];
  let at = from;
  for (const [a, b] of gaps) {
    if (a > at) stretches.push({ from: at, to: a, x: 0, width: 0, folded: false });
    stretches.push({ from: a, to: b, x: 0, width: 0, folded: true });
    at = b;
  }
  if (at < to || !stretches.length) stretches.push({ from: at, to, x: 0, width: 0, folded: false });

  const folds = stretches.filter((one) => one.folded).length;
  const mark = folds ? Math.min(FOLD, (width * 0.6) / folds) : 0;
  const shown = stretches.filter((one) => !one.folded);
  const time = shown.reduce((sum, one) => sum + one.to - one.from, 0) || 1;
  const room = Math.max(0, width - folds * mark - shown.length * LEAST);
  let x = 0;
  for (const one of stretches) {
    one.x = x;
    one.width = one.folded ? mark : LEAST + ((one.to - one.from) / time) * room;
    x += one.width;
  }
  return new Scale(stretches, width);
}

/** Round distances for the marks of an axis. */
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000];

/** The marks of an axis, from the run's start on, about `apart` pixels from each other. */
export function ticks(of: Scale, origin: number, apart = 90): { x: number; at: number }[] {
  const found: { x: number; at: number }[] = [];
  for (const one of of.stretches) {
    // From a minute on a label has two parts.
    if (one.folded || one.width < (one.from - origin < 59.95 ? 46 : 72)) continue;
    found.push({ x: one.x, at: one.from });
    const step = STEPS.find((step) => (step / (one.to - one.from)) * one.width >= apart) ?? STEPS.at(-1)!;
    for (let at = origin + Math.ceil((one.from - origin) / step - 1e-9) * step; at <= one.to; at += step) {
      const x = of.x(at);
      // A label has no room right behind the first, nor at the end.
      if (x > one.x + 46 && x + 46 < one.x + one.width) found.push({ x, at });
    }
  }
  return found;
}
