import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";
import { licences, source, stamp, uncalled, unneeded } from "./scripts/bundle.ts";

// File names without hashes keep the committed bundle readable; `stamp` puts one hash of it all into the references.
export default defineConfig({
  base: "./",
  plugins: [unneeded(), svelte(), uncalled(), licences(), stamp(), source()],
  build: {
    outDir: "../src/perdure/server/ui",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8500" } },
});
