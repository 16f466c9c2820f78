import { prefs } from "./prefs.svelte";

/** A moment: RFC 3339, or seconds since 1970. */
export type At = string | number;

export const seconds = (at: At): number => (typeof at === "number" ? at : Date.parse(at) / 1000);

class Now {
  #at = $state.raw(Date.now() / 1000);
  #ahead = 0;

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.#at = Date.now() / 1000 + this.#ahead;
    }, 1000);
  }

  /** The server's clock counts, not the browser's. */
  synchronise(server: string): void {
    this.#ahead = seconds(server) - Date.now() / 1000;
    this.#at = seconds(server);
  }

  /** Now, a second at a time. */
  get at(): number {
    return this.#at;
  }

  exact(): number {
    return Date.now() / 1000 + this.#ahead;
  }
}

export const now = new Now();

const zone = () => (prefs.zone === "local" ? undefined : prefs.zone);
const formats = new Map<string, Intl.DateTimeFormat>();

function format(name: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = `${name} ${prefs.zone}`;
  let found = formats.get(key);
  if (!found) formats.set(key, (found = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone(), hourCycle: "h23" })));
  return found;
}

function parts(name: string, options: Intl.DateTimeFormatOptions, at: number): Record<string, string> {
  return Object.fromEntries(format(name, options).formatToParts(at * 1000).map((part) => [part.type, part.value]));
}

const FULL: Intl.DateTimeFormatOptions = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, timeZoneName: "longOffset",
};

/** `2026-11-19 03:44:07.125 +01:00`: a time that can be copied and means one moment. */
export function full(at: At): string {
  const p = parts("full", FULL, seconds(at));
  const offset = (p.timeZoneName ?? "").replace("GMT", "").replace("−", "-") || "UTC";
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}.${p.fractionalSecond} ${offset}`;
}

/** `03:44:07` today, else `19 Nov 03:44`, and with the year where it is another. */
export function short(at: At): string {
  const p = parts("short", FULL, seconds(at)), today = parts("short", FULL, now.at);
  if (p.year === today.year && p.month === today.month && p.day === today.day) return `${p.hour}:${p.minute}:${p.second}`;
  const month = format("month", { month: "short" }).format(seconds(at) * 1000);
  return `${Number(p.day)} ${month}${p.year === today.year ? "" : ` ${p.year}`} ${p.hour}:${p.minute}`;
}

/** A text of the server, whose moments are in UTC and in full, with moments as the page shows them. */
export const timed = (text: string): string => text.replace(/\d{4}-\d\d-\d\dT[\d:]+Z/g, short);

/** The short name of the zone that times are shown in, at a moment: it changes with the season. */
export function zoneName(at: At = now.at): string {
  return parts("zone", { timeZoneName: "short" }, seconds(at)).timeZoneName ?? "";
}

/** A moment as a field for one shows it, by the clock of the zone that times are shown in. */
export const wall = (at: At): string => full(at).slice(0, 16).replace(" ", "T");

/** The moment that such a field has. */
export function moment(field: string): string {
  const shown = Date.parse(`${field.slice(0, 16)}Z`);
  let at = shown;
  // The zone's distance from UTC is that of the moment itself, which the first round only comes near to.
  for (let rounds = 2; rounds--; ) at += shown - Date.parse(`${wall(at / 1000)}Z`);
  return new Date(at).toISOString();
}

/** How long: `340 ms`, `1.24 s`, `3 min 4 s`, `2 d 3 h`. */
export function span(length: number): string {
  if (length < 0) return `−${span(-length)}`;
  if (length < 0.0005) return "0 ms";
  if (length < 0.9995) return `${Math.round(length * 1000)} ms`;
  if (length < 9.995) return `${length.toFixed(2)} s`;
  if (length < 59.95) return `${length.toFixed(1)} s`;
  const whole = Math.round(length);
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  const [size, name] = units[first]!;
  const rest = units[first + 1];
  const more = rest ? Math.floor((whole % size) / rest[0]) : 0;
  return `${Math.floor(whole / size)} ${name}${more && rest ? ` ${more} ${rest[1]}` : ""}`;
}

/** `3 min ago`, `in 2 h`. */
export function relative(at: At): string {
  const ago = now.at - seconds(at), length = Math.floor(Math.abs(ago));
  if (length < 2) return "now";
  const [size, unit] = length < 60 ? [1, "s"] : length < 3600 ? [60, "min"] : length < 86_400 ? [3600, "h"] : [86_400, "d"];
  const text = `${Math.floor(length / (size as number))} ${unit}`;
  return ago > 0 ? `${text} ago` : `in ${text}`;
}

export const zones = (): string[] => ["local", "UTC", ...Intl.supportedValuesOf("timeZone").filter((one) => one !== "UTC")];
