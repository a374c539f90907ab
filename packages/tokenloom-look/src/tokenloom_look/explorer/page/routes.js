// Addresses of views: `#/VIEW?name=value`. Whatever is looked at has one, so that back, forward and links work.

/** Reads an address; null if it is none of a view. */
export function parseRoute(hash) {
  const found = /^#\/([a-z]+)(?:\?(.*))?$/.exec(hash);
  return found && { view: found[1], parameters: Object.fromEntries(new URLSearchParams(found[2] ?? "")) };
}

/** Writes an address; parameters that are null or "" are left out. */
export function route(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${query && "?"}${query}`;
}

/** Goes to an address; by `replace` as if the one before had never been there. */
export function go(view, parameters = {}, { replace = false } = {}) {
  const address = route(view, parameters);
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else if (location.hash === address) {
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}
