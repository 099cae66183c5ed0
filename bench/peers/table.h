/* Things that are found by a name of some bytes. A thing begins with a `struct entry`. */
#ifndef TABLE_H
#define TABLE_H

#include <stddef.h>
#include <stdint.h>

struct entry {
    struct entry *next; /* in the same bucket */
    uint64_t hash;
    size_t name_size;
    unsigned char *name;
};

struct table {
    struct entry **buckets;
    size_t bucket_count, count;
};

void table_open(struct table *table);
struct entry *table_find(const struct table *table, const void *name, size_t size);
/* Makes a thing of `size` bytes, all zero but its entry, and adds it. None of the name may be there. */
void *table_add(struct table *table, size_t size, const void *name, size_t name_size);
/* Removes and frees it. */
void table_remove(struct table *table, struct entry *entry);
/* Calls for each; what is visited may be removed. */
void table_visit(struct table *table, void (*visit)(struct entry *entry, void *with), void *with);

#endif
