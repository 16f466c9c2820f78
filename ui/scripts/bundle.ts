/** What the build does to its result: one hash in all references, and the licences of what is bundled. */
import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

/** Put `?v=<hash of everything>` behind every reference to a file of the bundle: the server says they never change. */
export function stamp(): Plugin {
  return {
    name: "stamp",
    enforce: "post",
    generateBundle(_, bundle) {
      const files = Object.values(bundle).sort((a, b) => (a.fileName < b.fileName ? -1 : 1));
      const text = (file: (typeof files)[number]) => String(file.type === "chunk" ? file.code : file.source);
      const hash = createHash("sha256");
      for (const file of files) if (!file.fileName.endsWith(".html")) hash.update(file.fileName + "\0" + text(file));
      const version = hash.digest("hex").slice(0, 10);
      const names = files.map((file) => file.fileName.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      const reference = new RegExp(`(["'\`]\\./(?:${names.join("|")}))(["'\`])`, "g");
      for (const file of files) {
        const stamped = text(file).replace(reference, `$1?v=${version}$2`);
        if (file.type === "chunk") file.code = stamped;
        else if (/\.(html|css)$/.test(file.fileName)) file.source = stamped;
      }
    },
  };
}

// What the bundle is made of, below ui/.
const MADE_OF = ["src", "public", "index.html", "package-lock.json", "svelte.config.js", "vite.config.ts", "scripts/bundle.ts"];

/** Write source.sha256: a hash of what the bundle is made of, so that whoever has no node sees that it was not built anew. */
export function source(): Plugin {
  return {
    name: "source",
    generateBundle() {
      const root = new URL("../", import.meta.url).pathname;
      const below = (name: string): string[] => (statSync(join(root, name)).isDirectory() ? readdirSync(join(root, name)).flatMap((one) => below(`${name}/${one}`)) : [name]);
      const hash = createHash("sha256");
      for (const name of MADE_OF.flatMap(below).sort()) hash.update(name + "\0").update(readFileSync(join(root, name))).update("\0");
      this.emitFile({ type: "asset", fileName: "source.sha256", source: hash.digest("hex") + "\n" });
    },
  };
}

/** Write LICENSES.txt: the packages whose code is in the bundle, with the text of each licence. */
export function licences(): Plugin {
  return {
    name: "licences",
    generateBundle(_, bundle) {
      const folders = new Set<string>();
      for (const file of Object.values(bundle)) {
        if (file.type !== "chunk") continue;
        for (const [id, module] of Object.entries(file.modules)) {
          const found = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id.replace(/^\0/, ""));
          if (found && module.renderedLength > 0) folders.add(found[0]);
        }
      }
      const texts = [...folders].map((folder) => licence(folder)).sort();
      const source = "What the files beside this one contain of other projects.\n\n" + texts.join("\n");
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source });
    },
  };
}

function licence(folder: string): string {
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const name = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
  if (!name) throw new Error(`${about.name} has no licence file in ${dirname(folder)}`);
  const text = existsSync(join(folder, name)) ? readFileSync(join(folder, name), "utf8").trim() : "";
  const rule = "-".repeat(78);
  return `${rule}\n${about.name} ${about.version} (${about.license})\n${rule}\n\n${text}\n`;
}

// What svelte does for pages that a server has rendered. These are not: they are made in the browser.
const HYDRATION = `
  export const hydrating = false, hydrate_node = null;
  /*#__NO_SIDE_EFFECTS__*/ export function set_hydrating() {}
  /*#__NO_SIDE_EFFECTS__*/ export function set_hydrate_node() {}
  /*#__NO_SIDE_EFFECTS__*/ export function hydrate_next() {}
  /*#__NO_SIDE_EFFECTS__*/ export function hydrate_template() {}
  /*#__NO_SIDE_EFFECTS__*/ export function reset() {}
  /*#__NO_SIDE_EFFECTS__*/ export function next() {}
  /*#__NO_SIDE_EFFECTS__*/ export function skip_nodes() {}
  /*#__NO_SIDE_EFFECTS__*/ export function read_hydration_instruction() {}
`;

// What svelte does for parts that wait for a promise, or that show an error in their place. There are none: effects outside of
// every boundary are a state that it knows.
const BOUNDARY = `
  export const boundary = (node, props, children) => children(node);
  export const pending = () => 0;
`;

// What svelte does for expressions that wait. There are none in the markup.
const ASYNC = `
  import { derived } from "./deriveds.js";
  export const flatten = (blockers, sync, async, fn) => fn(sync.map(derived));
  const none = () => undefined;
  export { none as run_after_blockers, none as capture, none as save, none as unsave, none as track_reactivity_loss, none as wait };
  export { none as for_await_track_reactivity_loss, none as unset_context, none as run, none as increment_pending };
`;

// State that is an object watched in all its parts: all state here is `$state.raw`, and replaced.
const PROXY = `
  export const proxy = (value) => value, get_proxied_value = proxy, is = Object.is;
`;

// The modules that nothing here needs, and what stands in for each: a quarter of svelte, and a call for each element.
const UNNEEDED: [RegExp, string][] = [
  [/\/svelte\/src\/internal\/client\/dom\/hydration\.js$/, HYDRATION],
  [/\/svelte\/src\/internal\/client\/dom\/blocks\/boundary\.js$/, BOUNDARY],
  [/\/svelte\/src\/internal\/client\/reactivity\/async\.js$/, ASYNC],
  [/\/svelte\/src\/internal\/client\/proxy\.js$/, PROXY],
  [/\/svelte\/src\/internal\/client\/dom\/elements\/custom-element\.js$/, "export const create_custom_element = 0;"],
  // Vite's, for style sheets of parts.
  [/^\0vite\/preload-helper\.js$/, "export const __vitePreload = (load) => load();"],
];

/** Leave out what is not needed. A build without one of them has another svelte, and fails. */
export function unneeded(): Plugin {
  const left = new Set(UNNEEDED);
  return {
    name: "unneeded",
    enforce: "pre",
    load(id) {
      const found = UNNEEDED.find(([module]) => module.test(id));
      if (found) left.delete(found);
      return found?.[1] ?? null;
    },
    generateBundle() {
      if (left.size) this.error(`these modules are not there any more: ${[...left].map(([module]) => module.source).join(", ")}`);
    },
  };
}

/** After svelte's compiler: its calls for hydration. */
export function uncalled(): Plugin {
  return {
    name: "uncalled",
    transform(code, id) {
      if (/\.svelte(\.ts)?$/.test(id) && code.includes("$.proxy(")) this.error(`${id} has state that is no $state.raw: bundle.ts leaves that part of svelte out`);
      return id.endsWith(".svelte") ? { code: code.replace(/^\s*\$\.(?:reset|next)\([\w$]*\);$/gm, ""), map: null } : null;
    },
  };
}
