// Addresses of views: `#/VIEW?name=value`. Each state of a view has an address, so that back, forward and links work.

/** Parses an address; null if it is not the address of a view. */
export function parseRoute(hash) {
  const found = /^#\/([a-z]+)(?:\?(.*))?$/.exec(hash);
  return found && { view: found[1], parameters: Object.fromEntries(new URLSearchParams(found[2] ?? "")) };
}

/** Returns an address; parameters that are null or "" are skipped. */
export function route(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${query && "?"}${query}`;
}

/** Opens an address; with `replace`, it replaces the current history entry. */
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
