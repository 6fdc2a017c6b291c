"""GET /docs: /openapi.json for people. One page that loads nothing from elsewhere.

Knows the shape of OpenAPI documents, and no route.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

router = APIRouter()

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rushlight: the API</title>
<style>
  :root { color-scheme: light dark }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }
  code, .type { font-family: ui-monospace, monospace; font-size: .9em }
  summary { cursor: pointer; padding: .3rem 0 }
  .method { display: inline-block; width: 4rem; font-weight: bold }
  .body { border-left: 3px solid #8888; padding-left: 1rem; margin-bottom: 1rem }
  table { border-collapse: collapse; width: 100% }
  td { border-top: 1px solid #8884; padding: .2rem .5rem; vertical-align: top }
  .type { opacity: .75; overflow-wrap: anywhere }
</style>
<h1>Rushlight</h1>
<p>Every route of this server, from <a href="openapi.json">openapi.json</a>.</p>
<main id="routes">Loading…</main>
<script>
"use strict";
const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (name) node.className = name;
  return node;
};
const nameOf = ref => ref.split("/").pop();
const typeOf = schema => {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map(typeOf).join(" | ");
  if (schema.type === "array") return "[" + typeOf(schema.items) + "]";
  if (schema.type === "object" && schema.additionalProperties instanceof Object)
    return "{name: " + typeOf(schema.additionalProperties) + "}";
  return schema.type || "any";
};
const fields = (schema, all) => {
  if (schema && schema.$ref) schema = all[nameOf(schema.$ref)];
  const table = make("table");
  for (const [name, field] of Object.entries(schema?.properties || {})) {
    const row = table.insertRow();
    row.insertCell().append(make("code", name));
    row.insertCell().append(make("span", typeOf(field), "type"));
    const notes = [(schema.required || []).includes(name) ? "required" : "", field.description];
    row.insertCell().append(notes.filter(Boolean).join("; "));
  }
  return table;
};
const section = (title, content, all) => {
  const part = make("details");
  part.append(make("summary", title));
  for (const [type, {schema}] of Object.entries(content || {}))
    part.append(make("p", type + ": " + typeOf(schema)), fields(schema, all));
  return part;
};
const show = spec => {
  const all = spec.components?.schemas || {};
  const routes = document.getElementById("routes");
  routes.textContent = "";
  for (const [path, methods] of Object.entries(spec.paths))
    for (const [method, route] of Object.entries(methods)) {
      const part = make("details"), line = make("summary");
      line.append(make("span", method.toUpperCase(), "method"), make("code", path));
      const body = make("div", "", "body");
      body.append(make("p", route.description || route.summary));
      if (route.requestBody) {
        const given = section("Request", route.requestBody.content, all);
        given.open = true;
        body.append(given);
      }
      for (const [status, reply] of Object.entries(route.responses || {}))
        body.append(section(status + " " + (reply.description || ""), reply.content, all));
      part.append(line, body);
      routes.append(part);
    }
  routes.append(make("h2", "Objects"));
  for (const [name, schema] of Object.entries(all).sort()) {
    const part = make("details");
    part.append(make("summary", name), make("p", schema.description), fields(schema, all));
    routes.append(part);
  }
};
fetch("openapi.json").then(reply => reply.json()).then(show).catch(error => {
  document.getElementById("routes").textContent = "openapi.json cannot be read: " + error;
});
</script>
"""


@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    """The page."""
    headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
    return HTMLResponse(_PAGE, headers=headers)
