// The token comes behind the #, which reaches no server, and stays in this tab.
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.has('token')) {
  sessionStorage.setItem('token', fragment.get('token') ?? '');
  history.replaceState(null, '', location.pathname);
}

async function show() {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem('token') ?? ''}` };
  const response = await fetch('api/v1/status', { headers });
  const status = await response.json();
  const state = document.getElementById('state');
  if (state) {
    state.textContent = response.ok ? `tow ${status.program} ${status.version}: ${status.state}` : status.error;
  }
}

show();
