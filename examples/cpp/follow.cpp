// follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE] keeps a copy of PATH ("" is all) of `tow serve --watch`: first
// what is there, then each change. Links are left out.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "link.hpp"

using namespace towpath;
namespace fs = std::filesystem;

constexpr size_t CREDIT = 1'000'000; // bytes that the server may have in flight
constexpr size_t MESSAGE_CREDIT_MIN = 256;

// Never trust that a path stays inside.
static bool is_inside(const std::string &name) {
    const fs::path path(name);
    if (name.empty() || path.is_absolute()) return false;
    for (const auto &word : path)
        if (word.empty() || word == "." || word == "..") return false;
    return name.find('\0') == std::string::npos;
}

class Copy {
public:
    explicit Copy(fs::path directory) : directory(std::move(directory)) {}

    void follow(Link &link, const std::string &path) {
        link.send({"follow", path, cursor});
        link.send({"credit", std::to_string(CREDIT)});
        for (;;) {
            const auto message = link.receive();
            if (message.size() == 2) throw std::runtime_error(path + ": " + message[1]); // after the word "error"
            if (message.size() != 6) throw std::runtime_error("a message of other than 6 frames: is it tow serve?");
            if (change(message[0], message[1], std::stoull(message[3]), std::stoull(message[4]), message[5])) cursor = message[2];
            link.send({"credit", std::to_string(std::max(message[5].size(), MESSAGE_CREDIT_MIN))});
        }
    }

private:
    fs::path directory;
    std::string cursor = "beginning";
    std::set<std::string> have;  // what this run has put into the directory
    std::set<std::string> stale; // what hasn't come again since the full state began

    // Carries a message out; true if its change is complete.
    bool change(const std::string &kind, const std::string &name, uint64_t size, uint64_t offset, const std::string &body) {
        if (kind == "full") {
            stale = have;
            return false;
        }
        if (kind == "live") {
            // What is in a directory goes before it.
            for (auto old = stale.rbegin(); old != stale.rend(); ++old) remove(*old);
            stale.clear();
            std::cout << "up to date" << std::endl;
            return true;
        }
        if (!is_inside(name)) throw std::runtime_error("the server sent the path " + name);
        const auto place = directory / name;
        if (kind == "file" && !write(place, size, offset, body)) return false;
        if (kind == "dir") fs::create_directories(place);
        if (kind == "gone") remove(name);
        if (kind == "file" || kind == "dir") {
            have.insert(name);
            stale.erase(name);
        }
        std::cout << kind << " " << name << std::endl; // void: the file changed meanwhile, and comes again
        return true;
    }

    // Writes a piece; true if the file is complete.
    static bool write(const fs::path &place, uint64_t size, uint64_t offset, const std::string &body) {
        const auto part = place.string() + ".part";
        if (offset == 0) fs::create_directories(place.parent_path());
        std::ofstream file(part, std::ios::binary | (offset == 0 ? std::ios::trunc : std::ios::app));
        file.exceptions(std::ios::failbit | std::ios::badbit);
        file << body << std::flush;
        if (offset + body.size() < size) return false;
        fs::rename(part, place);
        return true;
    }

    // Takes away only what this run has put there, and no directory that has something else.
    void remove(const std::string &name) {
        std::error_code not_empty;
        if (have.erase(name)) fs::remove(directory / name, not_empty);
    }
};

int main(int count, char **words) {
    return run(count, words, 3, "follow ENDPOINT PATH DIRECTORY", [](const Arguments &arguments) {
        Copy copy(arguments[2]);
        keep({arguments[0]}, read_keys(arguments, 3), [&](Link &link) { copy.follow(link, arguments[1]); });
    });
}
