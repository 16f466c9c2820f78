/**
 * JSON of users, without rounding: a number that JavaScript cannot hold is kept as it was written.
 *
 * Such a number is a text that begins with a mark which no value can have: it is drawn anew for each page.
 */
const MARK = `\uE000${crypto.getRandomValues(new Uint32Array(2)).join("")}:`;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const MAY_BE_ROUNDED = /\d{16}|\d[eE]|\d\.\d{14}/;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");

export function parse(text: string): unknown {
  if (!MAY_BE_ROUNDED.test(text)) return JSON.parse(text);
  return JSON.parse(
    text.replace(TOKEN, (token) =>
      token.startsWith('"') || holds(token) ? token : JSON.stringify(MARK + token),
    ),
  );
}

/** Whether a double is this number: whole ones up to 2^53, others with up to 15 digits. */
function holds(token: string): boolean {
  const number = Number(token);
  if (String(number) === token) return true;
  if (/^-?\d+$/.test(token)) return Number.isSafeInteger(number);
  return Number.isFinite(number) && token.replace(/[eE].*/, "").replace(/\D/g, "").replace(/^0+/, "").length <= 15;
}

export function print(value: unknown, indent?: number): string {
  return (JSON.stringify(value, null, indent) ?? "null").replace(MARKED, "$1");
}

/** The digits of a number that is kept as a text; null for anything else. */
export function digits(value: unknown): string | null {
  return typeof value === "string" && value.startsWith(MARK) ? value.slice(MARK.length) : null;
}
