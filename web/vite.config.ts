import { defineConfig } from "vite";

const server = "http://127.0.0.1:8080";

// Built into the package; the hook in ../hatch_build.py runs this. Nothing is inlined: the page's policy forbids it.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/stepscope/web/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    assetsDir: "assets",
    cssCodeSplit: false,
    reportCompressedSize: true,
  },
  server: { proxy: { "/api": server } },
});
