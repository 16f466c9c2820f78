/** Python, coloured. Knows words, texts and comments, and no more: what it does not know stays plain. */

export type Look = "" | "word" | "text" | "number" | "comment" | "decorator";
export interface Token {
  text: string;
  look: Look;
}
export interface CodeLine {
  tokens: Token[];
  /** It goes on with what a line above has begun: a bracket or a text is open. */
  continued: boolean;
}

const WORDS = new Set(
  "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield".split(" "),
);
const TOKEN = /(?<comment>#[^\n]*)|(?<text>[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?))|(?<decorator>^[ \t]*@[\w.]+)|(?<number>\b\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?\b)|(?<name>[A-Za-z_]\w*)|(?<bracket>[()[\]{}])/gm;

export function python(source: string): CodeLine[] {
  const lines: CodeLine[] = [{ tokens: [], continued: false }];
  let depth = 0;
  const put = (text: string, look: Look) => {
    text.split("\n").forEach((part, n) => {
      if (n) lines.push({ tokens: [], continued: depth > 0 || look === "text" });
      if (part) lines.at(-1)!.tokens.push({ text: part, look });
    });
  };
  let at = 0;
  for (const found of source.matchAll(TOKEN)) {
    if (found.index > at) put(source.slice(at, found.index), "");
    const groups = found.groups as Record<string, string | undefined>;
    const text = found[0];
    if (groups.comment !== undefined) put(text, "comment");
    else if (groups.text !== undefined) put(text, "text");
    else if (groups.decorator !== undefined) put(text, "decorator");
    else if (groups.number !== undefined) put(text, "number");
    else if (groups.bracket !== undefined) {
      put(text, "");
      depth = Math.max(0, depth + ("([{".includes(text) ? 1 : -1));
    } else put(text, WORDS.has(text) ? "word" : "");
    at = found.index + text.length;
  }
  put(source.slice(at), "");
  return lines;
}
