/* What the two measuring ends share: many connections in one thread, each a client or worker, speaking Majordomo over ZMTP 3.1
 * in any dialect, or the `raw` protocol of raw_broker: no handshake, an byte that says who it is, and then frames of
 * a slot of four bytes and a body. */
#ifndef LOAD_H
#define LOAD_H

#include "mdp.h"
#include "stream.h"

enum { CONNECTIONS_MOST = 12000, EVENTS_AT_ONCE = 256, SLOT_BYTES = 4 };
enum { RAW_CLIENT = 'C', RAW_WORKER = 'W' };

/* NULL: the raw protocol. */
const struct dialect *load_dialect(const char *name);

/* Opens connections, each known to the poller by its place in `streams`, and waits until all handshakes are over. Bytes that come
 * after a handshake stay in the buffers. */
void load_connect(struct stream *streams, size_t count, uint16_t port, const struct dialect *dialect, char raw_role, int poller);

#endif
