#include "table.h"
#include "peer.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS_AT_FIRST = 1024 };

/* FNV-1a. */
static uint64_t hash_of(const unsigned char *name, size_t size) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++) hash = (hash ^ name[i]) * 0x100000001b3;
    return hash ^ hash >> 32;
}

void table_open(struct table *table) {
    table->bucket_count = BUCKETS_AT_FIRST;
    table->count = 0;
    table->buckets = calloc(table->bucket_count, sizeof *table->buckets);
    if (table->buckets == NULL) die("calloc");
}

static struct entry **bucket(const struct table *table, uint64_t hash) { return &table->buckets[hash & (table->bucket_count - 1)]; }

static void grow(struct table *table) {
    struct table larger = {.bucket_count = table->bucket_count * 2, .count = table->count};
    larger.buckets = calloc(larger.bucket_count, sizeof *larger.buckets);
    if (larger.buckets == NULL) die("calloc");
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (struct entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            struct entry **first = bucket(&larger, entry->hash);
            entry->next = *first;
            *first = entry;
        }
    }
    free(table->buckets);
    *table = larger;
}

struct entry *table_find(const struct table *table, const void *name, size_t size) {
    uint64_t hash = hash_of(name, size);
    struct entry *entry = *bucket(table, hash);
    while (entry != NULL && (entry->hash != hash || entry->name_size != size || memcmp(entry->name, name, size) != 0))
        entry = entry->next;
    return entry;
}

void *table_add(struct table *table, size_t size, const void *name, size_t name_size) {
    if (table->count >= table->bucket_count) grow(table);
    struct entry *entry = calloc(1, size + name_size);
    if (entry == NULL) die("calloc");
    entry->name = (unsigned char *)entry + size;
    entry->name_size = name_size;
    memcpy(entry->name, name, name_size);
    entry->hash = hash_of(name, name_size);
    struct entry **first = bucket(table, entry->hash);
    entry->next = *first;
    *first = entry;
    table->count++;
    return entry;
}

void table_remove(struct table *table, struct entry *entry) {
    struct entry **link = bucket(table, entry->hash);
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
    table->count--;
    free(entry);
}

void table_visit(struct table *table, void (*visit)(struct entry *entry, void *with), void *with) {
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (struct entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            visit(entry, with);
        }
    }
}
