#include "records.hpp"

#include <utility>

namespace towpath {

constexpr size_t BODY_FRAMES_MAX = 1000;
constexpr size_t ATTACH_BYTES = 4096;      // larger bodies are a frame of their own
constexpr size_t BLOCK_BYTES = 256 << 10;  // of records that are sent as one message
constexpr size_t TOKEN_BYTES = 16;
constexpr size_t NAME_BYTES_MAX = 255;

namespace {

class Reader {
public:
    explicit Reader(const std::string &data) : data(data) {}

    bool done() const { return at == data.size(); }

    std::string bytes(size_t count) {
        if (count > data.size() - at) throw Malformed("a record ends too early");
        at += count;
        return data.substr(at - count, count);
    }

    template <typename Number> Number number() {
        Number number = 0;
        for (const unsigned char byte : bytes(sizeof number)) number = Number(uint64_t(number) << 8 | byte);
        return number;
    }

private:
    const std::string &data;
    size_t at = 0;
};

Body split(const std::string &body) {
    Reader rest(body);
    Body frames;
    while (!rest.done() && frames.size() < BODY_FRAMES_MAX) frames.push_back(rest.bytes(rest.number<uint32_t>()));
    if (frames.empty() || !rest.done()) throw Malformed("frames of a body");
    return frames;
}

Body read_body(Reader &block, uint8_t flags, int known, std::optional<std::string> &attached) {
    const auto length = block.number<uint32_t>();
    auto body = block.bytes(length);
    if (flags & ~known) throw Malformed("unknown flags");
    if (flags & ATTACHED) {
        if (length > 0 || !attached || !block.done()) throw Malformed("a body isn't attached");
        body = *std::exchange(attached, std::nullopt);
    }
    return flags & SEVERAL ? split(body) : Body{body};
}

// Braces, unlike arguments, are evaluated in order.
Record to_client(Reader &block, std::optional<std::string> &attached) {
    switch (block.number<uint8_t>()) {
    case 0x41:
        return Welcome{block.number<uint64_t>(), block.number<uint32_t>(), block.number<uint64_t>(), (block.number<uint8_t>() & 1) != 0};
    case 0x42: {
        const auto flags = block.number<uint8_t>();
        Reply reply{block.number<uint64_t>(), block.number<uint16_t>(), {}, {}};
        if (flags & PARTIAL) reply.part = block.number<uint32_t>();
        reply.body = read_body(block, flags, SEVERAL | ATTACHED | PARTIAL, attached);
        return reply;
    }
    case 0x43:
        return Accepted{block.number<uint64_t>(), block.number<uint32_t>()};
    case 0x44:
        return Refused{block.number<uint64_t>(), block.number<uint16_t>(), block.number<uint32_t>(), block.bytes(block.number<uint8_t>())};
    default:
        throw Malformed("an unknown record");
    }
}

Record to_worker(Reader &block, std::optional<std::string> &attached) {
    switch (block.number<uint8_t>()) {
    case 0xC1:
        return WorkerWelcome{block.number<uint64_t>()};
    case 0xC2: {
        const auto flags = block.number<uint8_t>();
        return Request{block.bytes(TOKEN_BYTES), block.number<uint16_t>(), block.number<uint32_t>(),
                       read_body(block, flags, SEVERAL | ATTACHED, attached)};
    }
    case 0xC3:
        return Cancel{block.bytes(TOKEN_BYTES)};
    case 0xC4:
        return Leave{};
    case 0xC5:
        return Identity{block.bytes(TOKEN_BYTES), block.bytes(TOKEN_BYTES)};
    default:
        throw Malformed("an unknown record");
    }
}

template <typename Number> std::string big_endian(Number number) {
    std::string bytes;
    for (int shift = 8 * sizeof number - 8; shift >= 0; shift -= 8) bytes += char(number >> shift);
    return bytes;
}

std::string u8(uint8_t number) { return big_endian(number); }

std::string name(const std::string &text) {
    const auto cut = text.substr(0, NAME_BYTES_MAX);
    return u8(cut.size()) + cut;
}

// Ends a record, whose second byte are its flags.
Outgoing with_body(std::string head, const Body &frames) {
    if (frames.size() == 1 && frames[0].size() > ATTACH_BYTES) {
        head[1] |= ATTACHED;
        return {head + big_endian<uint32_t>(0), frames[0]};
    }
    std::string body;
    if (frames.size() == 1) {
        body = frames[0];
    } else {
        head[1] |= SEVERAL;
        for (const auto &frame : frames) body += big_endian<uint32_t>(frame.size()) + frame;
    }
    return {head + big_endian<uint32_t>(body.size()) + body, {}};
}

} // namespace

std::vector<Record> decode(const Message &message, const std::string &header) {
    if (message.size() < 2 || message.size() > 3 || message[0] != header) throw Malformed("is it a broker of numbered requests?");
    std::optional<std::string> attached;
    if (message.size() == 3) attached = message[2];
    std::vector<Record> records;
    for (Reader block(message[1]); !block.done();)
        records.push_back(header == CLIENT_HEADER ? to_client(block, attached) : to_worker(block, attached));
    if (attached) throw Malformed("a frame that no record announces");
    return records;
}

std::string join(const Body &body) {
    std::string joined;
    for (const auto &frame : body) joined += frame;
    return joined;
}

Outgoing hello(const std::string &client, uint64_t first) { return {u8(0x01) + client + big_endian(first), {}}; }

Outgoing request(uint64_t number, const std::string &service, uint32_t ttl, uint8_t flags, const Body &body) {
    return with_body(u8(0x02) + u8(flags) + big_endian(number) + big_endian(ttl) + name(service), body);
}

Outgoing confirm(uint64_t first, uint32_t count) { return {u8(0x03) + big_endian(first) + big_endian(count), {}}; }

Outgoing cancel(uint64_t number) { return {u8(0x04) + big_endian(number), {}}; }

Outgoing ready(uint32_t credit, const std::string &service) { return {u8(0x81) + big_endian(credit) + name(service), {}}; }

Outgoing reply(const std::string &token, uint16_t status, std::optional<uint32_t> part, const Body &body) {
    return with_body(u8(0x82) + u8(part ? PARTIAL : 0) + token + big_endian(status) + (part ? big_endian(*part) : ""), body);
}

Outgoing credit(uint32_t credit) { return {u8(0x83) + big_endian(credit), {}}; }

Outgoing leaving() { return {u8(0x84), {}}; }

Outgoing give_back(const std::string &token, const std::string &reason) { return {u8(0x85) + token + name(reason), {}}; }

void Blocks::add(const Outgoing &outgoing) {
    block += outgoing.record;
    if (outgoing.attachment) link.send({header, std::exchange(block, {}), *outgoing.attachment});
    else if (block.size() > BLOCK_BYTES) flush();
}

void Blocks::flush() {
    if (!block.empty()) link.send({header, std::exchange(block, {})});
}

} // namespace towpath
