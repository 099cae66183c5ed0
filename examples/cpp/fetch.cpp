// fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE] fetches a file from `tow serve`, ten pieces ahead. What it has is in
// COPY.part, and is continued by the next connection, or the next run.
#include <filesystem>
#include <fstream>

#include "link.hpp"

using namespace towpath;

constexpr size_t PIECE_BYTES = 250'000;
constexpr int AHEAD = 10;

static void fetch(Link &link, const std::string &path, const std::string &part) {
    std::ofstream file(part, std::ios::app | std::ios::binary);
    file.exceptions(std::ios::failbit | std::ios::badbit);
    auto next = std::filesystem::file_size(part);
    const auto ask = [&] {
        link.send({"fetch", path, std::to_string(next), std::to_string(PIECE_BYTES)});
        next += PIECE_BYTES;
    };
    for (int n = 0; n < AHEAD; n++) ask();
    for (;;) {
        const auto answer = link.receive();
        if (answer.size() > 1) throw std::runtime_error(path + ": " + answer[1]); // after the word "error"
        file << answer[0] << std::flush;
        if (answer[0].size() < PIECE_BYTES) return; // the end of the file
        ask();
    }
}

int main(int count, char **words) {
    return run(count, words, 3, "fetch ENDPOINT PATH COPY", [](const Arguments &arguments) {
        const auto part = arguments[2] + ".part";
        keep({arguments[0]}, read_keys(arguments, 3), [&](Link &link) { fetch(link, arguments[1], part); });
        std::filesystem::rename(part, arguments[2]);
    });
}
